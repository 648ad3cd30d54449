"""GemmAllToAll on the interpreter: exact shares of everyone's product along any axes, for any world, with calls in a row."""

import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pknumba import GemmAllToAllConfig, World, gemm_all_to_all
from pknumba.errors import ConfigError, ProtocolError, ShapeError, WorldError
from pknumba.kernels.gemm_all_to_all import ColumnsAndColumns, ColumnsAndRows, GemmAllToAll, RowsAndRows
from pknumba.templates import delivery

from . import fused, mutation
from .products import DTYPES, guarded, matrix, reference, untouched

KERNELS = (GemmAllToAll, RowsAndRows, ColumnsAndRows, ColumnsAndColumns)
AXES = list(itertools.product((0, 1), (0, 1)))
VARIANTS = {kernel: fused.variants(kernel) for kernel in KERNELS}
ALL = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", (1, 2, 3, 4, 8))
def test_seeds(world, seed):
    """A kernel, a configuration, a shape, a policy and a way of completing for each seed; another rank is late each time."""
    kernel, shape = KERNELS[(seed + world) % 4], fused.SHAPES[(5 * seed + world) % len(fused.SHAPES)]
    cfg = VARIANTS[kernel][(seed * 7 + world) % len(VARIANTS[kernel])]
    fused.run(kernel, cfg, world, *shape, sms=2 + seed % 3, skew=40 * (seed % 2), **fused.schedule(seed))


def test_every_configuration():
    for number, cfg in enumerate(VARIANTS[ColumnsAndRows]):
        fused.run(ColumnsAndRows, cfg, 2, *fused.SHAPES[number % 8], seed=number, skew=30)


@pytest.mark.parametrize("kernel, world, policy, completion", [(GemmAllToAll, 3, "starve", "late"), (ColumnsAndRows, 2, "pct", "random")])
def test_fifty_calls(kernel, world, policy, completion):
    """New values in the same arrays, ranks late in turn, no barrier: a missing hand-over spoils some call."""
    fused.run(kernel, fused.toy(kernel), world, 20, 40, 20, calls=50, skew=60, policy=policy, completion=completion)


@ALL
def test_shares_without_elements(kernel):
    fused.run(kernel, fused.toy(kernel), 8, 3, 5, 7, calls=2, **fused.schedule(KERNELS.index(kernel)))


@pytest.mark.parametrize("n", [16, 40, 44])
def test_shares_of_columns_begin_where_the_copy_engine_can(n):
    """On 16 bytes: as they lie, or after a copy to padded memory."""
    cfg, world = fused.toy(ColumnsAndRows, b_transposed=False), SimpleNamespace(rank=0, size=2)
    assert bool(ColumnsAndRows.form.apart(n, cfg, world)) == (n // 2 % 8 > 0)
    assert not ColumnsAndRows.form.apart(n, cfg.replace(b_transposed=True), world) and not GemmAllToAll.form.apart(n, cfg, world)
    fused.run(ColumnsAndRows, cfg, 2, 20, n, 20)


def test_a_column_that_the_copy_engine_cannot_begin_at():
    """On the device an illegal instruction; the interpreter says what is wrong."""
    class Bare(ColumnsAndRows):
        class form(ColumnsAndRows.form):
            @classmethod
            def apart(form, n, cfg, world):
                return []
    with pytest.raises(ProtocolError, match="first_col = 22 of float32. The innermost coordinate of a bulk copy is a multiple of 16 bytes"):
        fused.run(Bare, fused.toy(Bare, b_transposed=False), 2, 20, 44, 20)


def play(kernel, n):
    """The n-th try of a mutant."""
    cfg = fused.toy(kernel, ping_pong=n % 2 == 1, c_stages=1 + n % 3, b_transposed=n % 4 > 1)
    fused.run(kernel, cfg, 2 + n // 2 % 2, 20, 72, 20, calls=3, skew=40, max_switches=200_000, **fused.schedule(n))


@pytest.mark.parametrize("kernel", (GemmAllToAll, ColumnsAndRows), ids=lambda kernel: kernel.__name__)
def test_every_mutant_is_noticed(kernel):
    """Of the roles that it plays; the other kernel's loader is not played by the first."""
    module = importlib.import_module("pknumba.kernels.gemm_all_to_all")
    alive, count = mutation.survivors(module, lambda m: getattr(m, kernel.__name__), play, 12, print, {kernel.__name__})
    assert not alive, "\n".join(alive)
    assert count >= (2 if kernel is GemmAllToAll else 3)


def test_every_mutant_of_the_driver_is_noticed():
    alive, count = mutation.survivors(delivery, mutation.drives(GemmAllToAll), play, 12, report=print)
    assert not alive, "\n".join(alive)
    assert count >= 4


# ---- the public function

def problem(world, seed, shape, dtype, axes, columns=False):
    """This rank's operands, and (value, bound) of its result."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
    a, b = pairs[world.rank]
    both = [[np.array_split(x, world.size, axes[0])[world.rank] for x in reference([pair], dtype)] for pair in pairs]
    return a, np.asfortranarray(b) if columns else b, [np.concatenate(x, axes[1]) for x in zip(*both)]


def assert_result(c, expected, dtype, what):
    value, bound = expected
    assert c.shape == value.shape and c.dtype == DTYPES[dtype], what
    assert (np.abs(c.astype(np.float64) - value) <= bound).all(), what


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_size(size, axes):
    def main(world):
        for i, shape in enumerate([(m, n, k) for m in (0, 1, 67, 150) for n in (0, 1, 130) for k in (0, 9)]):
            dtype = list(DTYPES)[i % 2]
            a, b, expected = problem(world, i, shape, dtype, axes, i % 3 == 0)
            assert_result(gemm_all_to_all(world, a, b, scatter_axis=axes[0], gather_axis=axes[1]), expected, dtype, shape)

    World.local(size, executor="interpreter", seed=size, num_sms=8).run(main)


@pytest.mark.parametrize("kind", ["none", "strided", "symmetric"])
@pytest.mark.parametrize("axes", AXES)
def test_where_it_goes(axes, kind):
    """Symmetric arrays are written in place where blocks allow it."""
    def main(world):
        for shape in ((32, 48, 40), (34, 50, 40)):
            a, b, expected = problem(world, 0, shape, "bfloat16", axes)
            symmetric = world.symmetric(expected[0].shape, "bfloat16")
            for call in range(2):
                a, b, expected = problem(world, call, shape, "bfloat16", axes)
                more = dict(scatter_axis=axes[0], gather_axis=axes[1])
                if kind == "strided":
                    out, around = guarded(expected[0].shape, "bfloat16")
                    assert gemm_all_to_all(world, a, b, out=out, **more) is out
                    assert untouched(out, around)
                else:
                    out = gemm_all_to_all(world, a, b, out=symmetric if kind == "symmetric" else None, **more)
                    assert kind == "none" or out is symmetric.local
                assert_result(out, expected, "bfloat16", (shape, call, kind))

    World.local(2, executor="interpreter", policy="starve", completion="late", num_sms=8).run(main)


def test_wrong_calls():
    """Every rank raises, and the world can still be used."""
    def main(world):
        a, b, expected = problem(world, 0, (8, 8, 8), "float16", (0, 1))
        for kind, more in ((ShapeError, dict(scatter_axis=2)), (ShapeError, dict(out=np.zeros((8, 8), np.float16))),
                           (WorldError, dict(scatter_axis=world.rank)), (ConfigError, dict(config=GemmAllToAllConfig(cluster=2)))):
            with pytest.raises(kind):
                gemm_all_to_all(world, a, b, **more)
        assert_result(gemm_all_to_all(world, a, b), expected, "float16", "after")

    World.local(2, executor="interpreter", num_sms=8).run(main)
