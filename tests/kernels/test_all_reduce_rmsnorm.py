"""all_reduce_rmsnorm on the interpreter: shapes, dtypes, both algorithms, arrays of all kinds, seeds, mutants, wrong calls."""

import importlib
import itertools

import numpy as np
import pytest
from greenlet import getcurrent

import pknumba
from pknumba import NormConfig, World, all_reduce_rmsnorm, kernels
from pknumba.errors import ConfigError, ContractError, DTypeError, LayoutError, ShapeError, WorldError
from pknumba.templates import communicate, rows

from .astray import survivors
from .collectives import DTYPES, KINDS, SIZES, Array, numbers
from .harness import schedule

TOY = NormConfig(blocks=2, warps=2, unroll=1)
ALGORITHMS = ("one-shot", "two-shot")
FLOATS = ("bfloat16", "float16", "float32")
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
#: Nothing, one element, less and more than a unit, rows that end within one, several pieces, dimensions of 1, one long row.
SHAPES = ((0, 5), (3, 0), (1,), (7,), (3, 5), (5, 8), (2, 3, 75), (4, 1, 16), (1, 700), (9, 264))


def definition(xs, residual, weight, eps):
    """(h, its norm in float64)."""
    h = np.add.reduce([x.astype(np.float32) for x in (*xs, residual)]).astype(residual.dtype)
    wide = h.astype(np.float64)
    mean = (wide * wide).sum(-1, keepdims=True) / max(wide.shape[-1], 1)
    return h, wide / np.sqrt(mean + eps) * weight.astype(np.float64)


def assert_norm(y, expected, n, what):
    """Sums of n squares in float32 are off by n roundings of them at most, scale and products by four more; then one of the dtype."""
    bound = np.abs(expected) * ((n / 2 + 8) * 2.0**-24 * 2 + UNIT[y.dtype.name]) + 2.0**-25
    assert (np.abs(y.astype(np.float64) - expected) <= bound).all(), what


def play(size, shape, call=None, dtype="float32", kinds=("ordinary",) * 3, config=TOY, calls=3, seed=0, skew=0, eps=1e-5, **options):
    """Call it ``calls`` times with new numbers in the same arrays. kinds: of x, out and residual_out (also "none", "same")."""
    rng = np.random.default_rng(seed)
    data = [([numbers(rng, shape, dtype) for _ in range(size)], numbers(rng, shape, dtype),
             rng.integers(1, 4, shape[-1:]).astype(DTYPES[dtype])) for _ in range(calls)]
    call = call or (lambda w, x, r, weight, **more: all_reduce_rmsnorm(w, x, r, weight, config=config, eps=eps, **more))

    def main(world):
        x = Array(world, shape, dtype, kinds[0])
        residual = Array(world, shape, dtype, "symmetric" if "symmetric" in kinds[2] else "ordinary")
        weight, given = Array(world, shape[-1:], dtype, "ordinary"), {}
        for name, kind, same in (("out", kinds[1], x), ("residual_out", kinds[2], residual)):
            if kind != "none":
                given[name] = same if "same" in kind else Array(world, shape, dtype, kind)
        for number, (xs, r, w) in enumerate(data):
            for _ in range(skew if size > 1 and (number + seed) % size == world.rank else 0):
                getcurrent().pause()
            x.values[...], residual.values[...], weight.values[...] = xs[world.rank], r, w
            y, h = call(world, x.argument, residual.argument, weight.argument, **{n: a.argument for n, a in given.items()})
            want, norm = definition(xs, r, w, eps)
            assert h.dtype == y.dtype == DTYPES[dtype] and np.array_equal(h, want), f"call {number}, rank {world.rank}: h is wrong"
            assert_norm(y, norm, shape[-1], f"call {number}, rank {world.rank}")
            assert "same" in kinds[2] or np.array_equal(residual.values, r), "residual was changed"
        assert all(a.untouched() for a in (x, residual, weight, *given.values())), "touched what lies around"
    World.local(size, executor="interpreter", seed=seed, **options).run(main)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", SIZES)
def test_shapes(size, algorithm):
    for i, shape in enumerate(SHAPES):
        play(size, shape, config=TOY.replace(algorithm=algorithm), dtype=FLOATS[i % 3], seed=i, calls=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kinds", [*itertools.product(KINDS, (*KINDS, "none", "same"), (*KINDS, "none", "same", "same symmetric"))],
                         ids=str)
def test_kinds(kinds, algorithm):
    play(3, (3, 75), kinds=kinds, config=TOY.replace(algorithm=algorithm), dtype="bfloat16", calls=2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", SIZES)
def test_seeds(size, algorithm):
    for seed in range(25):
        kinds = KINDS[seed % 2], ("none", "same", *KINDS)[seed % 4], ("same", "none", "same symmetric", *KINDS)[seed % 5]
        play(size, (3, 75) if size < 8 else (2, 40), kinds=kinds, config=TOY.replace(algorithm=algorithm), skew=30,
             calls=3 if size < 4 else 2, **schedule(seed))


def test_sizes_choose_the_algorithm():
    """By default; both sides of the limit are right."""
    for rows_ in (8, 9):
        play(2, (rows_, 8192), config=None, calls=1)


def test_norm_of_what_is_stored():
    """h is rounded once, after the residual; the norm is that of the rounded h."""
    def main(world):
        x = np.array([[256, 0]], DTYPES["bfloat16"]) if world.rank == 0 else np.array([[1, 0]], DTYPES["bfloat16"])
        residual, weight = np.array([[1, 0]], DTYPES["bfloat16"]), np.ones(2, DTYPES["bfloat16"])
        for algorithm in ALGORITHMS:
            y, h = all_reduce_rmsnorm(world, x, residual, weight, config=TOY.replace(algorithm=algorithm), eps=0)
            assert float(h[0, 0]) == 258 and float(y[0, 0]) == float(DTYPES["bfloat16"].type(2**0.5))
    World.local(2, executor="interpreter").run(main)


def attempt(algorithm):
    """A try of the kernel, with every kind of array, several calls, ranks late in turn."""
    def run(kernel, n):
        def call(world, x, residual, weight, out=None, residual_out=None):
            h = np.empty_like(x) if residual_out is None else residual_out
            y = communicate(kernel, world, x, out, TOY.replace(algorithm=algorithm), None, (residual, weight, h), eps=1e-5)
            return y, getattr(h, "local", h)
        kinds = KINDS[n % 2], ("ordinary", "symmetric")[n // 2 % 2], ("same", *KINDS)[n // 4 % 3]
        play(2 + n % 2, (5, 152), call, kinds=kinds, skew=40, calls=3, max_switches=200_000, **schedule(n))
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name, algorithm, least", [("AllReduceRmsNorm", "two-shot", 8), ("OneShotRmsNorm", "one-shot", 8)])
def test_every_mutant_of_the_kernel_is_noticed(name, algorithm, least):
    module = importlib.import_module("pknumba.kernels.all_reduce_rmsnorm")
    alive, count = survivors(module, name, lambda m: m.AllReduceRmsNorm, attempt(algorithm), 12)
    assert not alive, "\n".join(alive)
    assert count >= least


@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver, algorithm, least", [("meeting_rows", "two-shot", 13), ("counted_rows", "one-shot", 4)])
def test_every_mutant_of_the_driver_is_noticed(driver, algorithm, least):
    home = importlib.import_module("pknumba.kernels.all_reduce_rmsnorm")
    chosen = kernels.AllReduceRmsNorm if algorithm == "two-shot" else home.OneShotRmsNorm

    def make(module):
        class Driven(chosen):
            @classmethod
            def variant(kernel, call, cfg):
                return kernel, cfg.replace(eps=1e-5, algorithm="auto")

            @classmethod
            def driver(kernel, role):
                return lambda play, _: getattr(module, driver)(kernel, play)
        return Driven

    alive, count = survivors(rows, driver, make, attempt(algorithm), 12)
    assert not alive, "\n".join(alive)
    assert count >= least


ONES = np.ones((4, 6), np.float32)
WRONG = {
    "no dimension": (lambda r: dict(x=np.array(1, np.float32), residual=np.array(1, np.float32)), ShapeError),
    "residual": (lambda r: dict(residual=np.ones((4, 5), np.float32)), ShapeError),
    "weight": (lambda r: dict(weight=np.ones(4, np.float32)), ShapeError),
    "residual_out": (lambda r: dict(residual_out=np.ones((5, 6), np.float32)), ShapeError),
    "dtype of weight": (lambda r: dict(weight=np.ones(6, np.float16)), DTypeError),
    "integers": (lambda r: dict(x=np.ones((4, 6), np.int32)), DTypeError),
    "eps": (lambda r: dict(eps=-1.0), ConfigError), "epsilons": (lambda r: dict(eps=1e-5 * (1 + r)), WorldError),
    "nothing": (lambda r: dict(residual=None), ContractError), "no x": (lambda r: dict(x="x"), ContractError),
    "same memory": (lambda r: (lambda m: dict(x=m, residual_out=m))(ONES.copy()), LayoutError),
    "both results in one": (lambda r: (lambda m: dict(out=m, residual_out=m))(ONES.copy()), LayoutError),
    "config": (lambda r: dict(config=pknumba.CommConfig()), ContractError),
    "multimem": (lambda r: dict(config=TOY.replace(algorithm="multimem")), ConfigError),
    "shapes": (lambda r: (lambda s: dict(x=np.ones(s, np.float32), residual=np.ones(s, np.float32)))((4 + r, 6)), ShapeError),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case):
    """Every rank raises, and the world can still be used."""
    change, kind = WRONG[case]

    def main(world):
        right = dict(x=ONES.copy(), residual=ONES.copy(), weight=np.ones(6, np.float32))
        with pytest.raises(kind):
            all_reduce_rmsnorm(world, **{**right, **change(world.rank)})
        assert (all_reduce_rmsnorm(world, **right)[1] == 3).all()
    World.local(2, executor="interpreter").run(main)
