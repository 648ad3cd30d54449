"""Collectives other than all_reduce on the interpreter: shapes, axes, dtypes, arrays of all kinds, roots, seeds, wrong calls."""

import itertools

import numpy as np
import pytest

import pknumba
from pknumba import World
from pknumba.errors import ContractError, DTypeError, LayoutError, ShapeError, WorldError

from .collectives import DTYPES, KINDS, SIZES, TOY, play
from .harness import schedule
from .definitions import DEFINITIONS

#: Operator -> arguments for a world of that size: every axis and root that differs.
ARGUMENTS = {
    "all_gather": lambda n: [dict(axis=a) for a in (0, 1, -1)],
    "reduce_scatter": lambda n: [dict(axis=a) for a in (0, 1, -1)],
    "all_to_all": lambda n: [dict(scatter_axis=s, gather_axis=g) for s, g in itertools.product((0, 1, 2), (0, 1, 2))],
    "broadcast": lambda n: [dict(root=r) for r in {0, n - 1}],
    "reduce": lambda n: [dict(root=r) for r in {0, n - 1}],
    "gather": lambda n: [dict(root=n - 1, axis=a) for a in (0, 2)],
    "scatter": lambda n: [dict(root=n // 2, axis=a) for a in (0, 1, 2)],
    "send_recv": lambda n: [dict(pairs=[(r, (r + 1) % n) for r in range(n)]), dict(pairs=[(0, n - 1)]),
                            dict(pairs=[(n - 1, r) for r in range(n)]), dict(pairs=[])],
}
SCATTERS = ("reduce_scatter", "all_to_all", "scatter")
REDUCES = ("reduce", "reduce_scatter")
IN_PLACE = ("broadcast", "reduce")


def shapes(name, size, arguments):
    """Shapes of x whose scattered axis has equal parts: single elements, odd, whole units, empty, long rows, many rows."""
    found = [[1, 1, 1], [2, 3, 5], [2, 3, 8], [1, 2, 0], [2, 1, 152], [20, 3, 2]]
    if name in SCATTERS:
        for shape in found:
            shape[arguments.get("axis", arguments.get("scatter_axis"))] *= size
    return [tuple(shape) for shape in found]


def run(name, size, shape, arguments, **options):
    """Seeds take turns in how operators that have both ways move their data: in packets, or by reading peers."""
    definition, operator = DEFINITIONS[name], getattr(pknumba, name)
    config = TOY.replace(algorithm=("one-shot", "two-shot")[options.get("seed", 0) % 2])
    wanted = [definition([np.zeros(shape, np.float32)] * size, r, **arguments) for r in range(size)]
    out_shape = next((w.shape for w in wanted if w is not None), shape)
    play(size, lambda world, x, out: operator(world, x, out=out, config=config, **arguments), lambda xs, r: definition(xs, r, **arguments),
         shape, out_shape, **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_shapes(name, size):
    for arguments in ARGUMENTS[name](size):
        for i, shape in enumerate(shapes(name, size, arguments)):
            run(name, size, shape, arguments, calls=2 if size < 8 else 1, seed=i, dtype=list(DTYPES)[i % 4])


@pytest.mark.parametrize("kinds", [(a, b) for a in KINDS for b in (*KINDS, "none", "same")], ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_kinds(name, kinds):
    """Symmetric arrays have rows apart where those are no multiple of 16 bytes; a root's result must be contiguous."""
    if kinds[1] == "same" and name not in IN_PLACE:
        pytest.skip("not in place")
    size, rooted = 3, name in ("reduce", "gather", "send_recv") and "symmetric" in (kinds[1], kinds[0] if kinds[1] == "same" else "")
    for i, arguments in enumerate(ARGUMENTS[name](size)):
        for shape in [(3, 6, 24)] if rooted else [(3, 6, 9), (6, 3, 24)]:
            run(name, size, shape, arguments, kinds=kinds, dtype="bfloat16", calls=2, seed=i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_dtypes(name, dtype):
    for op in ("sum", "min", "max") if name in REDUCES else (None,):
        arguments = dict(ARGUMENTS[name](3)[0], **({"op": op} if op else {}))
        for seed in range(2):
            run(name, 3, (3, 6, 19 * 3), arguments, dtype=dtype, calls=1, seed=seed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_seeds(name, size):
    every = ARGUMENTS[name](size)
    for seed in range(25):
        kinds = KINDS[seed % 2], ("none", *KINDS)[seed // 2 % 3]
        arguments = every[seed % len(every)]
        run(name, size, shapes(name, size, arguments)[4], arguments, kinds=kinds, skew=30, calls=3 if size < 8 else 2, **schedule(seed))


@pytest.mark.parametrize("scatter, gather", list(itertools.product(range(4), range(4))))
def test_all_to_all_of_four_dimensions(scatter, gather):
    run("all_to_all", 2, (4, 2, 6, 8), dict(scatter_axis=scatter, gather_axis=gather), calls=1)
    run("all_to_all", 3, (3, 6, 3, 9), dict(scatter_axis=scatter - 4, gather_axis=gather - 4), calls=1, kinds=("symmetric", "symmetric"))


def test_default_configuration():
    """Without one given, sizes choose it."""
    for name in ARGUMENTS:
        definition, operator, arguments = DEFINITIONS[name], getattr(pknumba, name), ARGUMENTS[name](2)[0]
        play(2, lambda world, x, out: operator(world, x, **arguments), lambda xs, r: definition(xs, r, **arguments), (2, 64, 500), calls=1)


def test_sizes_choose_packets():
    """By default; both sides of the limit are right: 512 KiB of boxes that a rank sends."""
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        for columns in (65_536, 65_544):
            definition, operator, arguments = DEFINITIONS[name], getattr(pknumba, name), ARGUMENTS[name](2)[0]
            shape = (1, 1, columns) if name == "all_gather" else (2, 1, columns)
            play(2, lambda world, x, out: operator(world, x, **arguments), lambda xs, r: definition(xs, r, **arguments), shape, calls=1)


def test_scatter_without_x():
    def main(world):
        whole = np.arange(12, dtype=np.float32).reshape(2, 6)
        for _ in range(2):
            out = np.zeros((2, 2), np.float32)
            pknumba.scatter(world, whole if world.rank == 1 else None, root=1, axis=1, out=out)
            assert (out == whole[:, 2 * world.rank:2 * world.rank + 2]).all()
    World.local(3, executor="interpreter").run(main)


ONES = np.ones((4, 6), np.float32)
WRONG = {
    "axis": ("all_gather", lambda r: dict(axis=2), ShapeError),
    "share": ("reduce_scatter", lambda r: dict(x=np.ones((3, 6), np.float32)), ShapeError),
    "root": ("broadcast", lambda r: dict(root=2), WorldError), "roots": ("broadcast", lambda r: dict(root=r), WorldError),
    "dtype": ("gather", lambda r: dict(x=ONES.astype(np.float64)), DTypeError),
    "shape of out": ("all_gather", lambda r: dict(out=np.ones((4, 6), np.float32)), ShapeError),
    "in place": ("all_to_all", lambda r: (lambda x: dict(x=x, out=x))(ONES.copy()), LayoutError),
    "twice": ("send_recv", lambda r: dict(pairs=[(0, 1), (1, 1)]), WorldError),
    "stranger": ("send_recv", lambda r: dict(pairs=[(0, 5)]), WorldError),
    "no x": ("scatter", lambda r: dict(x=None), ContractError),
    "axes": ("all_to_all", lambda r: dict(scatter_axis=r), WorldError),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case):
    """Every rank raises, and the world can still be used."""
    name, change, kind = WRONG[case]

    def main(world):
        if kind is not None:
            with pytest.raises(kind):
                getattr(pknumba, name)(world, **{**dict(x=ONES.copy()), **change(world.rank)})
        assert (pknumba.all_gather(world, ONES) == np.ones((8, 6))).all()
    World.local(2, executor="interpreter").run(main)
