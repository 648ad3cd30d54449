"""The public operators on the interpreter, with real configurations: any shape, layout and dtype, against float64."""

import itertools

import numpy as np
import pytest

from pknumba import World, gemm, gemm_all_reduce
from pknumba.config import GemmAllReduceConfig, GemmConfig

from .products import DTYPES, assert_close, guarded, matrix, untouched

SIZES = (0, 1, 7, 130)
SMALL = GemmConfig(tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1)
CONFIGS = {
    "default": None,
    "one consumer": SMALL,
    "turns": GemmConfig(tile_m=64, tile_n=64, stages=3, c_stages=1, ping_pong=True),
    "three together": GemmConfig(tile_m=192, tile_n=96, stages=2, consumers=3, group_m=2),
    "deep": GemmConfig(tile_m=128, tile_n=48, tile_k=128, stages=2),
}
LAYOUTS = {
    "plain": lambda x: x,
    "rows apart": lambda x: np.concatenate([x, x], 1)[:, :x.shape[1]],
    "every other row": lambda x: np.repeat(x, 2, 0)[::2],
    "off the alignment": lambda x: np.pad(x, ((1, 0), (3, 2)))[1:, 3:3 + x.shape[1]],
}


def alone(**options):
    return World.local(1, executor="interpreter", **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", SIZES)
def test_gemm_of_any_size(m, dtype):
    rng = np.random.default_rng(m)
    with alone() as world:
        for n, k in itertools.product(SIZES, SIZES):
            a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)
            assert_close(gemm(world, a, b), [(a, b)], dtype, (m, n, k))
            bt = np.ascontiguousarray(b.T)
            assert_close(gemm(world, a, bt.T), [(a, b)], dtype, (m, n, k, "transposed"))


@pytest.mark.parametrize("name", CONFIGS)
def test_gemm_in_any_configuration(name):
    rng = np.random.default_rng(1)
    with alone(num_sms=3) as world:
        for i, (m, n, k) in enumerate([(65, 33, 65), (200, 150, 70), (129, 257, 200), (64, 64, 8)]):
            dtype = ("bfloat16", "float16")[i % 2]
            a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)
            for right in (b, np.asfortranarray(b)):
                assert_close(gemm(world, a, right, config=CONFIGS[name]), [(a, b)], dtype, (m, n, k))


@pytest.mark.parametrize("right", ["row-major", "transposed"])
@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_gemm_of_any_layout(of_a, of_b, right):
    rng = np.random.default_rng(2)
    a, b = matrix(rng, (70, 90), "bfloat16"), matrix(rng, (90, 50), "bfloat16")
    left = LAYOUTS[of_a](a)
    other = LAYOUTS[of_b](b) if right == "row-major" else LAYOUTS[of_b](np.ascontiguousarray(b.T)).T
    out, around = guarded((70, 50), "bfloat16")
    with alone() as world:
        assert gemm(world, left, other, out=out) is out
    assert_close(out, [(a, b)], "bfloat16")
    assert untouched(out, around)


@pytest.mark.parametrize("m, n, k", [(5, 1, 9), (1, 5, 9), (5, 9, 1), (1, 1, 1)])
def test_one_row_or_column_of_anything(m, n, k):
    """An extent of 1 has no layout: strides along it mean nothing."""
    rng = np.random.default_rng(3)
    a, b = matrix(rng, (m, k), "float16"), matrix(rng, (k, n), "float16")
    forms = [lambda x: x, np.asfortranarray, lambda x: np.repeat(x, 3, 1)[:, ::3], lambda x: np.repeat(x, 3, 0)[::3],
             lambda x: np.repeat(x.T, 2, 1)[:, ::2].T]
    results = []
    with alone() as world:
        for f, g in itertools.product(forms, forms):
            left, right = f(a), g(b)
            if k > 1 and left.strides[1] != 2 or n > 1 and k > 1 and 2 not in right.strides:
                continue                         # layouts that are refused
            out, around = guarded((m, n), "float16")
            gemm(world, left, right, out=out)
            assert_close(out, [(a, b)], "float16")
            assert untouched(out, around)
            results.append(out)
    assert len(results) > 8


# ---- with other ranks

def product_of_ranks(world, seed, shape, dtype, layout="row-major"):
    """This rank's operands, and everyone's as (a, b) pairs."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
    a, b = pairs[world.rank]
    return a, b if layout == "row-major" else np.asfortranarray(b), pairs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_reduce_of_any_size(size, dtype):
    def main(world):
        for i, shape in enumerate(itertools.product((0, 1, 67), (0, 1, 130), (0, 9))):
            a, b, pairs = product_of_ranks(world, i, shape, dtype, ("row-major", "transposed")[i % 2])
            c = gemm_all_reduce(world, a, b)
            assert_close(c, pairs, dtype, shape)

    World.local(size, executor="interpreter", seed=size).run(main)


@pytest.mark.parametrize("kind", ["none", "strided", "symmetric"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_where_the_sum_goes(size, kind):
    def main(world):
        shape = (70, 50, 40)
        symmetric = world.symmetric(shape[:2], "bfloat16") if kind == "symmetric" else None
        for call in range(3):
            a, b, pairs = product_of_ranks(world, call, shape, "bfloat16")
            if kind == "none":
                c = gemm_all_reduce(world, a, b)
            elif kind == "strided":
                c, around = guarded(shape[:2], "bfloat16")
                assert gemm_all_reduce(world, a, b, out=c) is c
                assert untouched(c, around)
            else:
                c = gemm_all_reduce(world, a, b, out=symmetric)
                assert c is symmetric.local
            assert_close(c, pairs, "bfloat16", (call, kind))
            bits.setdefault(call, []).append(c.copy().view(np.uint16))

    bits = {}
    World.local(size, executor="interpreter", policy="starve", completion="late").run(main)
    for everyone in bits.values():
        assert len(everyone) == size and all((x == everyone[0]).all() for x in everyone), "not the same bits on every rank"


@pytest.mark.parametrize("name", CONFIGS)
def test_all_reduce_in_any_configuration(name):
    base = CONFIGS[name]
    config = base and GemmAllReduceConfig(**{**vars(base), "comm_sms": 1, "piece_m": 16})

    def main(world):
        for i, shape in enumerate([(65, 33, 65), (200, 150, 70)]):
            a, b, pairs = product_of_ranks(world, i, shape, "float16", ("row-major", "transposed")[i % 2])
            assert_close(gemm_all_reduce(world, a, b, config=config), pairs, "float16", shape)

    World.local(2, executor="interpreter", num_sms=3).run(main)


def test_symmetric_operands_and_two_results():
    """Symmetric arrays as A and B; the results of two calls live side by side; two operators in turn."""
    def main(world):
        a, b, pairs = product_of_ranks(world, 0, (40, 24, 32), "bfloat16")
        left, right = world.symmetric((40, 32)), world.symmetric((32, 24))
        left.local[...], right.local[...] = a, b
        first, second = world.symmetric((40, 24)), world.symmetric((40, 24))
        gemm_all_reduce(world, left, right, out=first)
        gemm_all_reduce(world, left.local, right, out=second)
        own = gemm(world, left, right)
        for c in (first, second):
            assert_close(c.local, pairs, "bfloat16")
        assert_close(own, [(a, b)], "bfloat16")
        identity = np.eye(24).astype(own.dtype)
        third = gemm_all_reduce(world, own, identity)
        assert_close(third, [(x, identity) for x in world.allgather(own)], "bfloat16")
        return third

    results = World.local(3, executor="interpreter").run(main)
    assert all((r == results[0]).all() for r in results)


def test_part_of_a_world():
    """A sub-world's ranks sum among themselves, while the others do something else."""
    def main(world):
        part = world.split([2, 0]) if world.rank != 1 else None
        a, b, pairs = product_of_ranks(world, 5, (33, 20, 17), "float16")
        if part is None:
            assert_close(gemm(world, a, b), [(a, b)], "float16")
        else:
            assert_close(gemm_all_reduce(part, a, b), [pairs[0], pairs[2]], "float16")
        world.barrier()
        assert_close(gemm_all_reduce(world, a, b), pairs, "float16")

    World.local(3, executor="interpreter").run(main)


def test_wider_worlds():
    def main(world):
        for call in range(2):
            a, b, pairs = product_of_ranks(world, call, (130, 70, 30), "bfloat16")
            assert_close(gemm_all_reduce(world, a, b), pairs, "bfloat16")

    World.local(8, executor="interpreter", seed=3).run(main)
