"""AllGatherGemm on the interpreter: exact products of the gathered A, for any world, with calls in a row and no barrier between."""

import importlib

import numpy as np
import pytest

from pknumba import World, all_gather_gemm
from pknumba.errors import ConfigError, ShapeError
from pknumba.kernels import AllGatherGemm
from pknumba.templates import bands

from . import fused, mutation
from .products import DTYPES, assert_close, guarded, matrix, untouched

VARIANTS = fused.variants(AllGatherGemm)
WORLDS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", WORLDS)
def test_seeds(world, seed):
    """A configuration, a shape, a policy and a way of completing for each seed; another rank is late each time."""
    shape = fused.SHAPES[(5 * seed + world) % len(fused.SHAPES)]
    cfg = VARIANTS[(seed * 7 + world) % len(VARIANTS)].replace(comm_sms=1 + seed % 2, depth=1 + seed % 3,
                                                                intra_sm=seed % 2 == 1, written=seed % 3 > 0)
    fused.run(AllGatherGemm, cfg, world, *shape, sms=3 + seed % 3, warps=cfg.movers, skew=40 * (seed % 2), **fused.schedule(seed))


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_every_configuration(number):
    fused.run(AllGatherGemm, VARIANTS[number].replace(intra_sm=number % 2 == 0), 2, *fused.SHAPES[number % 8], seed=number, skew=30)


@pytest.mark.parametrize("world, policy, completion", [(3, "starve", "late"), (2, "pct", "random")])
def test_fifty_calls(world, policy, completion):
    """New values in the same arrays, ranks late in turn, no barrier: a missing hand-over spoils some call."""
    fused.run(AllGatherGemm, fused.toy(AllGatherGemm), world, 20, 40, 20, calls=50, skew=60, policy=policy, completion=completion)


def test_shares_without_rows():
    for seed in range(4):
        fused.run(AllGatherGemm, fused.toy(AllGatherGemm, comm_sms=2), 8, 3, 5, 7, calls=3, **fused.schedule(seed))


def play(kernel, n):
    """The n-th try of a mutant: shares that end with a tile, and shares that do not."""
    cfg = fused.toy(kernel, ping_pong=n % 2 == 1, c_stages=1 + n % 3, intra_sm=n % 4 > 1, written=n % 3 == 1)
    world = 2 + n // 2 % 2
    m = 32 * world if n % 3 else 40
    fused.run(kernel, cfg, world, m, calls=3, skew=40, max_switches=200_000, **fused.schedule(n))


def test_every_mutant_is_noticed():
    module = importlib.import_module("pknumba.kernels.all_gather_gemm")
    alive, count = mutation.survivors(module, lambda m: m.AllGatherGemm, play, 12, report=print)
    assert set(alive) <= mutation.of_pace(AllGatherGemm), "\n".join(alive)
    assert count >= 15


def test_every_mutant_of_its_drivers_is_noticed():
    own = {"till_consumed", "movers"}                                       # the others are Ulysses', whose tests mutate them
    alive, count = mutation.survivors(bands, mutation.drives(AllGatherGemm), play, 12, print, own)
    assert not alive, "\n".join(alive)
    assert count >= 6


# ---- the public function

def problem(world, seed, shape, dtype, columns=False):
    """This rank's shard and B, and the whole operands of its product."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    shards = np.array_split(matrix(rng, (m, k), dtype), world.size)
    b = [matrix(rng, (k, n), dtype) for _ in range(world.size)][world.rank]
    return shards[world.rank], np.asfortranarray(b) if columns else b, [(np.concatenate(shards), b)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_any_size(size, dtype):
    def main(world):
        shapes = [(m, n, k) for m in (0, 1, 67, 300) for n in (0, 1, 130) for k in (0, 9)]
        for i, shape in enumerate(shapes if size < 8 else shapes[::5]):
            a, b, pair = problem(world, i, shape, dtype, i % 2)
            assert_close(all_gather_gemm(world, a, b, rows=shape[0]), pair, dtype, shape)

    World.local(size, executor="interpreter", seed=size).run(main)


@pytest.mark.parametrize("kind", ["none", "strided", "symmetric"])
def test_equal_shares(kind):
    """Whole tiles, then not; rows need not be said."""
    def main(world):
        for m in (256 * world.size, 30 * world.size):
            symmetric = world.symmetric((m, 40), "bfloat16")
            for call in range(2):
                a, b, pair = problem(world, call, (m, 40, 72), "bfloat16")
                if kind == "strided":
                    out, around = guarded((m, 40), "bfloat16")
                    assert all_gather_gemm(world, a, b, out=out) is out
                    assert untouched(out, around)
                else:
                    out = all_gather_gemm(world, a, b, out=symmetric if kind == "symmetric" else None)
                    assert kind == "none" or out is symmetric.local
                assert_close(out, pair, "bfloat16", (call, kind))

    World.local(3, executor="interpreter", policy="starve", completion="late").run(main)


def test_shards_of_another_length():
    """What one rank gets wrong is an error on all; the world can still be used."""
    def main(world):
        a, b, pair = problem(world, 0, (9, 8, 8), "float16")
        with pytest.raises(ShapeError, match="share of 8 rows"):
            all_gather_gemm(world, a, b, rows=8)
        with pytest.raises(ShapeError):
            all_gather_gemm(world, a, b)                    # 5 and 4 rows: 10, or 8?
        with pytest.raises(ShapeError, match="rows = 9.0"):
            all_gather_gemm(world, a, b, rows=9.0)
        with pytest.raises(ConfigError, match="chunk_m = 48"):
            from pknumba import AllGatherGemmConfig
            all_gather_gemm(world, a, b, rows=9, config=AllGatherGemmConfig(chunk_m=48))
        assert_close(all_gather_gemm(world, a, b, rows=9), pair, "float16")

    World.local(2, executor="interpreter").run(main)
