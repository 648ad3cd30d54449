"""Collectives in which ranks write to each other, on the interpreter: arrays of all kinds, dtypes, operations, seeds, wrong calls."""

import numpy as np
import pytest

import pknumba
from pknumba import World
from pknumba.errors import ConfigError

from .collectives import DTYPES, KINDS, SIZES, TOY, play
from .harness import schedule
from .definitions import DEFINITIONS

PUSH = TOY.replace(algorithm="push")
#: Operator -> function (number of ranks) of (shape of x, of the result, arguments). Rows that end within a unit, whole units in the middle.
CASES = {"all_reduce": lambda n: ((n * 88,), (n * 88,), {}),
         "reduce_scatter": lambda n: ((2, n * 3, 13), (2, 3, 13), dict(axis=1)),
         "all_gather": lambda n: ((2, 3, 37), (2, n * 3, 37), dict(axis=1)),
         "all_to_all": lambda n: ((2, n * 3, 13), (2 * n, 3, 13), dict(scatter_axis=1, gather_axis=0))}
TO_RESULTS = ("all_gather", "all_to_all")


def run(name, size, kinds, dtype="float32", **options):
    shape, out_shape, arguments = CASES[name](size)
    more = {"op": options.pop("op")} if "op" in options else {}
    play(size, lambda world, x, out: getattr(pknumba, name)(world, x, out=out, config=PUSH, **arguments, **more),
         lambda xs, r: DEFINITIONS[name](xs, r, **arguments, **more), shape, out_shape, dtype, kinds, **options)


def kinds_of(name, seed):
    """Every kind of x with every kind of out that it takes."""
    return KINDS[seed % 2], "symmetric" if name in TO_RESULTS else ("none", *KINDS)[seed % 3]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_seeds(name, size):
    for seed in range(25 if size in (2, 3) else 3):
        run(name, size, kinds_of(name, seed), skew=30, calls=2, **schedule(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_dtypes_and_operations(name, dtype):
    for i, op in enumerate(("sum", "min", "max") if "reduce" in name else (None,)):
        run(name, 3, kinds_of(name, i), dtype, calls=2, seed=i, **({"op": op} if op else {}))


@pytest.mark.parametrize("kind", KINDS)
def test_in_place(kind):
    run("all_reduce", 3, (kind, "same"), skew=30)


@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_order(name):
    """Ranks are added in their order: 2^24 + 1 is 2^24 in float32, and 1 is lost only so."""
    def main(world):
        x = np.full((24,), (2.0**24, 1, -2.0**24)[world.rank], np.float32)
        return getattr(pknumba, name)(world, x, config=PUSH)
    assert all((found == 0).all() for found in World.local(3, executor="interpreter").run(main))


@pytest.mark.parametrize("name, shape", [("all_gather", (4, 4)), ("all_to_all", (4, 4)), ("all_reduce", (3, 5))])
def test_what_it_cannot_do(name, shape):
    """Results that nobody else sees; shares that are no whole units."""
    with pytest.raises(ConfigError, match=f"{name}: algorithm push"):
        World.local(2, executor="interpreter").run(lambda world: getattr(pknumba, name)(world, np.ones(shape, np.float32), config=PUSH))


def test_symmetric_results_choose_it(monkeypatch):
    """Where they are large enough; ranks that share a card read each other else."""
    from pknumba.kernels.all_gather import AllGather, AllGatherPush
    from pknumba.templates import transfers
    found = []
    monkeypatch.setattr(transfers.launches, "note", lambda kernel, cfg: found.append(kernel))

    def main(world):
        x, out = np.ones(1 << 17, np.float32), world.symmetric((2 << 17,), "float32")
        pknumba.all_gather(world, x, out=out)
        pknumba.all_gather(world, x)
    World.local(2, executor="interpreter", races=False).run(main)
    assert found[:2] == [AllGatherPush] * 2 and found[2:] == [AllGather] * 2
