"""Products of float32, which tensor cores multiply as tf32: every operator, any world, within the bound that cut mantissas explain."""

import numpy as np
import pytest

from pknumba import (AllGatherGemmConfig, GemmAllReduceConfig, GemmConfig, GemmReduceScatterConfig, World, all_gather_gemm, gemm,
                     gemm_all_reduce, gemm_all_to_all, gemm_reduce_scatter)
from pknumba.errors import ConfigError, LayoutError

from .products import assert_close, matrix, readable

SHAPES = ((1, 1, 1), (67, 130, 9), (130, 48, 100), (300, 264, 1), (3, 1, 40), (64, 64, 0))


def play(world, shape, seed):
    """Every operator on one shape; a wrong peer's numbers are wrong."""
    (m, n, k), rng, r = shape, np.random.default_rng(seed), world.rank
    pairs = [(matrix(rng, (m, k), "float32"), matrix(rng, (n, k), "float32").T) for _ in range(world.size)]
    (a, b), mine = pairs[r], [pairs[r]]
    whole = [(pairs[0][0], b)]
    assert_close(gemm(world, a, b), mine, "float32", shape)
    assert_close(gemm_all_reduce(world, a, b), pairs, "float32", shape)
    assert_close(np.concatenate(world.allgather(gemm_reduce_scatter(world, a, b))), pairs, "float32", shape)
    assert_close(all_gather_gemm(world, np.array_split(whole[0][0], world.size)[r], b, rows=m), whole, "float32", shape)
    shares = world.allgather(gemm_all_to_all(world, a, b))
    assert_close(np.concatenate(shares)[:, r * n:(r + 1) * n], mine, "float32", shape)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_size(size):
    World.local(size, executor="interpreter", seed=size).run(lambda world: [play(world, shape, i) for i, shape in enumerate(SHAPES)])


def test_small_integers_are_exact():
    """With SMs that only communicate, with adds, and with a configuration of one's own."""
    small = dict(tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1)

    def main(world):
        rng = np.random.default_rng(1)
        pairs = [(rng.integers(-9, 10, (70, 50)).astype(np.float32), rng.integers(-9, 10, (40, 50)).astype(np.float32).T) for _ in "ab"]
        a, b = pairs[world.rank]
        total = sum(x @ y for x, y in pairs)
        share = np.array_split(total, 2)[world.rank]
        assert (gemm(world, a, b, config=GemmConfig(**small)) == a @ b).all()
        assert (gemm_all_reduce(world, a, b, config=GemmAllReduceConfig(**small, comm_sms=1)) == total).all()
        for adds in (False, True):
            config = GemmReduceScatterConfig(**small, comm_sms=1, adds=adds)
            assert (gemm_reduce_scatter(world, a, b, config=config) == share).all()
        whole = np.concatenate([x for x, _ in pairs]) @ b
        assert (all_gather_gemm(world, a, b, config=AllGatherGemmConfig(**small, chunk_m=16, comm_sms=1)) == whole).all()
    World.local(2, executor="interpreter", num_sms=4).run(main)


def test_mantissas_are_cut():
    """1 + 2^-11 is multiplied as 1, which a definition in float32 would not notice."""
    with World.local(1, executor="interpreter") as world:
        a, b = np.full((64, 8), 1 + 2.0 ** -11, np.float32), np.ones((16, 8), np.float32)
        assert (gemm(world, a, b.T) == 8).all()


def test_what_cannot_be():
    a, b = np.ones((8, 8), np.float32), np.ones((8, 16), np.float32)
    with World.local(1, executor="interpreter") as world:
        with pytest.raises(LayoutError, match="float32 and row-major") as caught:
            gemm(world, a, b)
        readable(caught.value, "transpose of a row-major")
        assert (gemm(world, a, np.ones((16, 8), np.float32).T) == 8).all()
    for config in (GemmConfig(dtype="float32", tile_k=32, b_transposed=False), GemmConfig(dtype="float32", tile_k=16)):
        with pytest.raises(ConfigError, match="float32"):
            config.check()
    assert GemmConfig(slices=4).of("float32", True) == GemmConfig(tile_k=32, dtype="float32")
