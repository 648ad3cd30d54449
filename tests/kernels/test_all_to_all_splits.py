"""all_to_all with uneven splits on the interpreter: every pair of axes, empty parts, seeds, wrong splits."""

import itertools

import numpy as np
import pytest

from pknumba import World, all_to_all
from pknumba.errors import LayoutError, ShapeError

from .collectives import DTYPES, TOY, numbers
from .harness import schedule


def parts(total, size):
    """Uneven extents, one of them 0 from three ranks on, that add up to total."""
    found = [0] * size
    for i in range(total):
        found[i % max(1, size - 1) if i % 3 else size - 1 if size < 3 else 0] += 1
    return tuple(found)


def play(size, scatter_axis, gather_axis, shape=(3, 10, 12, 8), dtype="float32", calls=2, uneven=("scatter", "gather"), seed=0, **options):
    same = scatter_axis == gather_axis
    scatter = parts(shape[scatter_axis], size)
    gather = parts(shape[gather_axis], size) if "gather" in uneven and not same else None
    if "scatter" not in uneven:
        shape = tuple(size * n if i == scatter_axis else n for i, n in enumerate(shape))
        scatter = None
    bounds = np.cumsum(scatter[:-1]) if scatter else size
    rng = np.random.default_rng(seed)
    shapes = [tuple(gather[r] if gather and i == gather_axis else n for i, n in enumerate(shape)) for r in range(size)]
    data = [[numbers(rng, s, dtype) for s in shapes] for _ in range(calls)]

    def main(world):
        for xs in data:
            want = np.concatenate([np.split(x, bounds, scatter_axis)[world.rank] for x in xs], gather_axis)
            around = np.full(want.size + 40, 113, DTYPES[dtype])
            out = around[20:20 + want.size].reshape(want.shape)
            got = all_to_all(world, xs[world.rank], scatter_axis=scatter_axis, gather_axis=gather_axis, scatter_splits=scatter,
                             gather_splits=gather, out=out, config=TOY)
            assert got is out and np.array_equal(got, want), f"rank {world.rank}"
            assert (around[:20] == 113).all() and (around[20 + want.size:] == 113).all()
    World.local(size, executor="interpreter", seed=seed, **options).run(main)


@pytest.mark.parametrize("scatter_axis, gather_axis", list(itertools.product(range(4), range(4))))
def test_axes(scatter_axis, gather_axis):
    for i, size in enumerate((1, 2, 3, 4)):
        play(size, scatter_axis, gather_axis, dtype=list(DTYPES)[i], calls=1)


@pytest.mark.parametrize("uneven", [("scatter",), ("gather",)])
def test_one_of_them(uneven):
    play(3, 2, 1, uneven=uneven)
    play(2, 1, 2, uneven=uneven)


def test_seeds():
    for seed in range(25):
        play((2, 3, 4)[seed % 3], 2, 1, (1, 9, 5, 40), calls=3, **schedule(seed))


def test_flat():
    """One dimension: parts of different lengths from everybody, as in a sort."""
    play(3, 0, 0, (1000,))
    play(8, 0, 0, (50,), calls=1)


WRONG = {"sum": dict(scatter_splits=(1, 2)), "count": dict(scatter_splits=(4,)), "negative": dict(scatter_splits=(5, -1)),
         "own": dict(gather_splits=(4, 5), gather_axis=1), "both": dict(scatter_splits=(1, 3), gather_splits=(1, 3))}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_splits(case):
    def main(world):
        with pytest.raises(ShapeError):
            all_to_all(world, np.ones((4, 4), np.float32), **WRONG[case])
        assert all_to_all(world, np.ones((4, 4), np.float32)).shape == (4, 4)
    World.local(2, executor="interpreter").run(main)


def test_rows_apart():
    def main(world):
        x = world.symmetric((4, 7), "bfloat16")
        with pytest.raises(LayoutError):
            all_to_all(world, x, scatter_splits=(1, 3))
    World.local(2, executor="interpreter").run(main)
