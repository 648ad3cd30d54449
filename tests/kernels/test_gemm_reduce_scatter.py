"""GemmReduceScatter on the interpreter: exact shares of the sum, for any world, with calls in a row and no barrier between them."""

import importlib

import numpy as np
import pytest

from pknumba import GemmReduceScatterConfig, World, gemm_reduce_scatter
from pknumba.config import choosing, hides_adds
from pknumba.errors import ConfigError, ShapeError
from pknumba.kernels.gemm_reduce_scatter import GemmReduceScatter, GemmReduceScatterAdd

from . import fused, mutation
from .products import DTYPES, guarded, matrix, reference, untouched

KERNELS = (GemmReduceScatter, GemmReduceScatterAdd)
VARIANTS = {kernel: fused.variants(kernel) for kernel in KERNELS}
BOTH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
WORLDS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", WORLDS)
def test_seeds(world, seed):
    """A configuration, a shape, a policy and a way of completing for each seed, the kernels in turn; another rank is late each time."""
    kernel = KERNELS[(seed + world // 2) % 2]
    shape = fused.SHAPES[(5 * seed + world) % len(fused.SHAPES)]
    cfg = VARIANTS[kernel][(seed * 7 + world) % len(VARIANTS[kernel])].replace(comm_sms=1 + seed % 2, piece_m=(1, 2, 4, 8)[seed % 4])
    fused.run(kernel, cfg, world, *shape, sms=3 + seed % 3, warps=1 + seed % 4, skew=40 * (seed % 2), **fused.schedule(seed))


@BOTH
@pytest.mark.parametrize("number", range(len(VARIANTS[GemmReduceScatter])))
def test_every_configuration(number, kernel):
    fused.run(kernel, VARIANTS[kernel][number], 2, *fused.SHAPES[number % 8], seed=number, skew=30)


@BOTH
@pytest.mark.parametrize("world, policy, completion", [(3, "starve", "late"), (2, "pct", "random")])
def test_fifty_calls(world, policy, completion, kernel):
    """New values in the same arrays, ranks late in turn, no barrier: a missing hand-over spoils some call."""
    fused.run(kernel, fused.toy(kernel), world, 20, 40, 20, calls=50, skew=60, policy=policy, completion=completion)


@BOTH
def test_shares_without_rows(kernel):
    for seed in range(4):
        fused.run(kernel, fused.toy(kernel, comm_sms=2), 8, 3, 5, 7, calls=3, **fused.schedule(seed))


def play(kernel, n):
    """The n-th try of a mutant."""
    cfg = fused.toy(kernel, ping_pong=n % 2 == 1, c_stages=1 + n % 3)
    fused.run(kernel, cfg, 2 + n // 2 % 2, calls=3, skew=40, max_switches=200_000, **fused.schedule(n))


def test_every_mutant_is_noticed():
    """By the kernel whose line it is: the storer is common to both."""
    module = importlib.import_module("pknumba.kernels.gemm_reduce_scatter")
    names = {kernel.__name__ for kernel in KERNELS}
    found = [mutation.survivors(module, lambda m, name=name: getattr(m, name), play, 12, print, names) for name in sorted(names)]
    (sums, count), (adds, _) = found
    assert not set(sums) & set(adds), "\n".join(set(sums) & set(adds))
    assert count >= 8 and len(sums) == len(adds) == 2, "each kernel's own wait, deleted and bent, is not played by the other"


# ---- the public function

def problem(world, seed, shape, dtype, columns=False):
    """This rank's operands, and (value, bound) of its share."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
    a, b = pairs[world.rank]
    share = [np.array_split(x, world.size)[world.rank] for x in reference(pairs, dtype)]
    return a, np.asfortranarray(b) if columns else b, share


def assert_share(c, share, dtype, what):
    value, bound = share
    assert c.shape == value.shape and c.dtype == DTYPES[dtype], what
    assert (np.abs(c.astype(np.float64) - value) <= bound).all(), what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_any_size(size, dtype):
    def main(world):
        shapes = [(m, n, k) for m in (0, 1, 67, 300) for n in (0, 1, 130) for k in (0, 9)]
        for i, shape in enumerate(shapes if size < 8 else shapes[::5]):
            a, b, share = problem(world, i, shape, dtype, i % 2)
            assert_share(gemm_reduce_scatter(world, a, b), share, dtype, shape)

    World.local(size, executor="interpreter", seed=size).run(main)


@pytest.mark.parametrize("kind", ["none", "strided", "symmetric"])
def test_where_the_share_goes(kind):
    def main(world):
        symmetric = world.symmetric((35, 50), "bfloat16")
        for call in range(3):
            a, b, share = problem(world, call, (70, 50, 40), "bfloat16")
            if kind == "strided":
                out, around = guarded((35, 50), "bfloat16")
                assert gemm_reduce_scatter(world, a, b, out=out) is out
                assert untouched(out, around)
            else:
                out = gemm_reduce_scatter(world, a, b, out=symmetric if kind == "symmetric" else None)
                assert kind == "none" or out is symmetric.local
            assert_share(out, share, "bfloat16", (call, kind))

    World.local(2, executor="interpreter", policy="starve", completion="late").run(main)


def test_sums_rounded_at_each_addition():
    """Small integers are exact; the memory that tiles are added to is zero again before the next call."""
    def main(world):
        config = GemmReduceScatterConfig(tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1, comm_sms=1, adds=True)
        for call in range(3):
            rng = np.random.default_rng(call)
            pairs = [(rng.integers(-2, 3, (70, 24)).astype(np.float16), rng.integers(-2, 3, (24, 40)).astype(np.float16))
                     for _ in range(world.size)]
            c = gemm_reduce_scatter(world, *pairs[world.rank], config=config)
            total = sum(a.astype(np.float32) @ b.astype(np.float32) for a, b in pairs)
            assert (c == np.array_split(total, world.size)[world.rank]).all()

    World.local(3, executor="interpreter", policy="starve", completion="late").run(main)


@pytest.mark.parametrize("k, sums, adds", [(24, "any", False), (64, "any", True), (64, "float32", False)])
def test_depth_chooses_how_sums_are_made(k, sums, adds, monkeypatch):
    """K >= s R / (2 B): here 48, where more than one rank sends. Small integers are exact either way."""
    monkeypatch.setattr(choosing, "_ADD_RATE", choosing._FLOPS / 48)

    def main(world):
        pairs = [(np.full((70, k), r + 1, np.float16), np.ones((k, 40), np.float16)) for r in range(world.size)]
        total = sum(range(1, world.size + 1)) * k
        assert (gemm_reduce_scatter(world, *pairs[world.rank], sums=sums) == total).all()
        played = {key[1] for key in world.cache if key[0] == "workspace"}
        assert played == {GemmReduceScatterAdd if adds and world.size > 2 else GemmReduceScatter.inside}

    for size in (2, 3):
        World.local(size, executor="interpreter").run(main)


def test_the_measured_depth():
    assert not hides_adds(2048, 2) and hides_adds(4096, 2)


def test_wrong_sums():
    """Every rank raises, also where they ask for different ones; the world can still be used."""
    def main(world):
        a = np.ones((8, 8), np.float16)
        for kind, sums in ((ConfigError, "float16"), (ConfigError, ("float32", "float16")[world.rank])):
            with pytest.raises(kind, match="sums is neither"):
                gemm_reduce_scatter(world, a, a, sums=sums)
        assert (gemm_reduce_scatter(world, a, a) == 16).all()

    World.local(2, executor="interpreter").run(main)


def test_the_same_sums_as_all_reduce():
    """Where SMs that only communicate make them."""
    from pknumba import GemmAllReduceConfig, gemm_all_reduce

    def main(world):
        a, b, _ = problem(world, 3, (100, 60, 90), "float16")
        sums, all_sums = (f(world, a, b, config=c(tile_m=64, tile_n=64, consumers=1, comm_sms=1)) for f, c in (
            (gemm_reduce_scatter, GemmReduceScatterConfig), (gemm_all_reduce, GemmAllReduceConfig)))
        assert (sums == np.array_split(all_sums, world.size)[world.rank]).all()

    World.local(3, executor="interpreter").run(main)


def test_wrong_out():
    def main(world):
        a, b, share = problem(world, 0, (7, 8, 8), "float16")
        with pytest.raises(ShapeError, match="out has shape"):
            gemm_reduce_scatter(world, a, b, out=np.zeros((7, 8), np.float16))
        assert_share(gemm_reduce_scatter(world, a, b), share, "float16", "after")

    World.local(2, executor="interpreter").run(main)
