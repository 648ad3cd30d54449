"""GemmAllReduce within SMs on the interpreter: communicators beside loader and storer; the same exact sums."""

import numpy as np
import pytest

from pknumba import GemmAllReduceConfig, World, gemm_all_reduce
from pknumba.config import GemmReduceScatterConfig
from pknumba.errors import ConfigError
from pknumba.kernels.gemm_all_reduce import GemmAllReduceInside

from . import fused
from .products import assert_close, matrix

VARIANTS = fused.variants(GemmAllReduceInside)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", (1, 2, 3, 4, 8))
def test_seeds(world, seed):
    """A configuration, a shape, a policy and a way of completing for each seed; another rank is late each time."""
    shape = fused.SHAPES[(5 * seed + world) % len(fused.SHAPES)]
    cfg = VARIANTS[(seed * 7 + world) % len(VARIANTS)].replace(piece_m=(1, 2, 4, 8)[seed % 4])
    fused.run(GemmAllReduceInside, cfg, world, *shape, sms=2 + seed % 3, skew=40 * (seed % 2), **fused.schedule(seed))


def test_many_calls():
    for world, policy, completion in ((3, "starve", "late"), (2, "pct", "random")):
        fused.run(GemmAllReduceInside, fused.toy(GemmAllReduceInside), world, 20, 40, 20, calls=25, skew=60, policy=policy,
                  completion=completion)


def test_the_public_function():
    """The same bits as with SMs that only communicate, whatever SMs a rank has."""
    def main(world):
        for i, shape in enumerate(((1, 1, 1), (70, 50, 40), (130, 96, 9))):
            rng = np.random.default_rng(i)
            (m, n, k), dtype = shape, "float16"
            pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
            inside = GemmAllReduceConfig(tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1, intra_sm=True, piece_m=1)
            c = gemm_all_reduce(world, *pairs[world.rank], config=inside)
            assert_close(c, pairs, "float16", shape)
            beside = gemm_all_reduce(world, *pairs[world.rank], config=inside.replace(intra_sm=False, comm_sms=1))
            assert (c == beside).all()
    World.local(3, executor="interpreter", num_sms=4).run(main)


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="piece_m = 1"):
        GemmAllReduceConfig(intra_sm=True).check()
    with pytest.raises(ConfigError, match="intra_sm"):
        GemmReduceScatterConfig(intra_sm=True, piece_m=1).check()
