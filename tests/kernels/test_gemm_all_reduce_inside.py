"""GemmAllReduce and GemmReduceScatter within SMs on the interpreter: ranks send tiles to their owners, who add them to their own; exact
sums for any world, with calls in a row and no barrier between them."""

import importlib

import numpy as np
import pytest

from pknumba import GemmAllReduceConfig, GemmReduceScatterConfig, World, gemm_all_reduce, gemm_reduce_scatter
from pknumba.errors import ConfigError
from pknumba.kernels.gemm_all_reduce import GemmAllReduceInside
from pknumba.kernels.gemm_reduce_scatter import GemmReduceScatterInside
from pknumba.templates import owned

from . import fused, mutation
from .products import assert_close, matrix

KERNELS = (GemmAllReduceInside, GemmReduceScatterInside)
VARIANTS = {kernel: fused.variants(kernel) for kernel in KERNELS}
BOTH = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", (2, 3, 4, 8))
def test_seeds(world, seed):
    """A configuration, a shape, a policy and a way of completing for each seed, the kernels in turn; another rank is late each time."""
    kernel = KERNELS[(seed + world // 2) % 2]
    shape = fused.SHAPES[(5 * seed + world) % len(fused.SHAPES)]
    cfg = VARIANTS[kernel][(seed * 7 + world) % len(VARIANTS[kernel])].replace(pace_m=8 * (seed % 4 > 1))
    fused.run(kernel, cfg, world, *shape, sms=2 + seed % 3, skew=40 * (seed % 2), **fused.schedule(seed))


@BOTH
@pytest.mark.parametrize("world, policy, completion", [(3, "starve", "late"), (2, "pct", "random")])
def test_many_calls(world, policy, completion, kernel):
    """New values in the same arrays, ranks late in turn, no barrier: a missing hand-over spoils some call."""
    fused.run(kernel, fused.toy(kernel), world, 20, 40, 20, calls=40, skew=60, policy=policy, completion=completion)


@BOTH
def test_ranks_without_tiles(kernel):
    for seed in range(4):
        fused.run(kernel, fused.toy(kernel), 8, 3, 5, 7, calls=3, **fused.schedule(seed))


def play(kernel, n):
    """The n-th try of a mutant: few SMs, so that each has tiles of its own and of others in both rings."""
    cfg = fused.toy(kernel, ping_pong=n % 2 == 1, c_stages=1 + n % 3, pace_m=8 * (n % 4 > 1))
    fused.run(kernel, cfg, 2 + n // 2 % 2, 64, 40, 20, calls=3, sms=2, skew=40, max_switches=200_000, **fused.schedule(n))


@pytest.mark.timeout(600)
@BOTH
def test_every_mutant_is_noticed(kernel):
    """Those of the kernels with SMs of their own, in the same file, are not played."""
    module = importlib.import_module(kernel.__module__)
    alive, count = mutation.survivors(module, lambda m: getattr(m, kernel.__name__), play, 12, report=print, within={kernel.__name__})
    assert set(alive) <= mutation.of_pace(GemmReduceScatterInside), "\n".join(alive)
    assert count >= (20 if kernel is GemmReduceScatterInside else 3)


def test_every_mutant_of_their_driver_is_noticed():
    """That of GemmReduceScatterInside; the other is GemmAllToAll's, whose tests mutate it."""
    alive, count = mutation.survivors(owned, mutation.drives(GemmReduceScatterInside), play, 3, report=print)
    # The number of the call lies in device memory, and is written once all of the rank have read it. The interpreter's host counts.
    # Results in ordinary memory are written when the kernel is over.
    assert all("g.finished" in line or "store_async_wait(0)" in line or "read only" in line for line in alive), "\n".join(alive)
    assert count >= 6


def test_the_public_functions():
    """The same sums as with SMs that only communicate, whatever SMs a rank has; without a configuration no SM only communicates."""
    def main(world):
        for i, shape in enumerate(((1, 1, 1), (70, 50, 40), (130, 96, 9))):
            rng = np.random.default_rng(i)
            (m, n, k), dtype = shape, "float16"
            pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
            small = dict(tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1)
            for config in (None, GemmAllReduceConfig(**small, intra_sm=True), GemmAllReduceConfig(**small, comm_sms=1)):
                assert_close(gemm_all_reduce(world, *pairs[world.rank], config=config), pairs, dtype, shape)
            for config in (None, GemmReduceScatterConfig(**small, intra_sm=True)):
                c = gemm_reduce_scatter(world, *pairs[world.rank], config=config)
                whole = world.allgather(c)
                assert_close(np.concatenate(whole), pairs, dtype, shape)
        played = {key[1].__name__ for key in world.cache if key[0] == "workspace"}
        assert played == {"GemmAllReduceInside", "GemmReduceScatterInside", "GemmAllReduce"}
    World.local(3, executor="interpreter", num_sms=4).run(main)


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="intra_sm with adds"):
        GemmReduceScatterConfig(intra_sm=True, adds=True).check()
