"""Run a collective on the interpreter: new inputs in the same arrays and no barrier between calls, exact results, guards.

Data are small integers, so sums over ranks are exact in every dtype and results are compared with ``==``; no two ranks hold
the same, so a wrong peer gives wrong numbers. Ordinary arrays lie inside larger ones whose margins must stay as they are.
"""

import ml_dtypes
import numpy as np
from greenlet import getcurrent

from pknumba import World
from pknumba.config import CommConfig

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32),
          "int32": np.dtype(np.int32)}
SIZES = (1, 2, 3, 4, 8)
#: Few pieces for each warp, few warps, pieces of 512 bytes: small arrays are cut as large ones are.
TOY = CommConfig(blocks=2, warps=2, unroll=1)
#: Empty, one element, odd, less and more than a unit of 16 bytes, several pieces with a tail, dimensions of 1.
SHAPES = ((0,), (1,), (7,), (8,), (9,), (333,), (1, 1), (3, 5), (64, 40), (2, 0, 3), (5, 1, 37))
KINDS = ("ordinary", "symmetric")
_POISON, _GUARD = 113, 17


def numbers(rng, shape, dtype):
    """Small integers of that dtype."""
    return rng.integers(-5, 6, shape).astype(DTYPES[dtype])


class Array:
    """An ordinary array with margins, or a symmetric one. ``argument`` is what a call is given, ``values`` what it holds."""

    def __init__(self, world, shape, dtype, kind):
        self.around = None
        if kind == "symmetric":
            self.argument = world.symmetric(shape, dtype)
            self.values = self.argument.local
        else:
            n = int(np.prod(shape))
            self.around = np.full(n + 2 * _GUARD, _POISON, DTYPES[dtype])
            self.argument = self.values = self.around[_GUARD:_GUARD + n].reshape(shape)

    def untouched(self):
        """Whether the margins are as they were."""
        return self.around is None or (self.around[:_GUARD] == _POISON).all() and (self.around[-_GUARD:] == _POISON).all()


def play(size, operator, expected, shape, out_shape=None, dtype="float32", kinds=("ordinary", "none"), calls=3, seed=0, skew=0, **options):
    """Call a collective ``calls`` times on ``size`` ranks and check every result.

    Args:
        operator: function(world, x, out) of the result. expected: function(every rank's x, rank) of it, None where there is none.
        kinds: of x ("ordinary", "symmetric") and of out (also "none", or "same": x itself).
        skew: how many steps another rank each time comes late.
    """
    rng = np.random.default_rng(seed)
    data = [[numbers(rng, shape, dtype) for _ in range(size)] for _ in range(calls)]

    def main(world):
        x = Array(world, shape, dtype, kinds[0])
        out = x if kinds[1] == "same" else None if kinds[1] == "none" else Array(world, out_shape or shape, dtype, kinds[1])
        for number, inputs in enumerate(data):
            for _ in range(skew if size > 1 and (number + seed) % size == world.rank else 0):
                getcurrent().pause()
            x.values[...] = inputs[world.rank]
            if out not in (None, x):
                out.values[...] = _POISON
            got, want = operator(world, x.argument, out and out.argument), expected(inputs, world.rank)
            assert (got is None) == (want is None), f"call {number}, rank {world.rank}: {got} instead of {want}"
            if want is not None:
                assert got.shape == want.shape and got.dtype == DTYPES[dtype], f"{got.shape} {got.dtype}"
                assert np.array_equal(got, want), f"call {number}, rank {world.rank}: {np.argwhere(got != want)[0]} is wrong"
                assert out is None or np.shares_memory(got, out.values) or not got.size
            if kinds[1] != "same":
                assert np.array_equal(x.values, inputs[world.rank]), f"call {number}, rank {world.rank}: x was changed"
        assert x.untouched() and (out is None or out.untouched()), f"rank {world.rank}: touched what lies around"

    World.local(size, executor="interpreter", seed=seed, **options).run(main)
