"""Reductions of register tiles over their rows: one value for each column.

The warps of a warpgroup hold different rows, so they meet in a shared tile that the kernel declares for it.
"""

import functools

import numpy as np

from .. import interpreter
from ..interpreter import Accumulator, SharedTile, read, write
from ..lowering import is_accumulator, need, primitive
from .elements import LARGER

_WARPS, _ROWS = 4, 16       # warps of a warpgroup, rows of each among 64


def _check(name, cols, scratch, is_tile):
    need(is_tile and len(scratch.shape) == 2 and str(scratch.dtype) == "float32" and scratch.shape[0] * scratch.shape[1] >= _WARPS * cols,
         f"{name}: of {cols} columns through {getattr(scratch, 'name', scratch)}. The warps meet in one shared float32 tile of at least "
         f"{_WARPS} values for each column. Declare Tile((workers, 8, {cols}), \"float32\", 32) and pass the worker's part.")


def _meet(name, function, acc, scratch):
    """What the warps have of each column, through ``scratch``; then of all, in their order."""
    x = interpreter.values(acc)
    rows, cols = x.shape
    _check(name, cols, scratch, isinstance(scratch, SharedTile))
    with np.errstate(all="ignore"):
        mine = np.zeros(scratch.shape, np.float32)
        mine.flat[:_WARPS * cols] = function.reduce(x.reshape(-1, _WARPS, _ROWS, cols), axis=(0, 2)).flat
        write(scratch, mine)
        found = read(scratch).ravel()[:_WARPS * cols].reshape(_WARPS, cols)
        return Accumulator.of(np.broadcast_to(function.reduce(found, axis=0), (rows, cols)))


def _column(acc, i):
    """Which of its thread's columns element i lies in."""
    return i % (acc.cols // 2) // 4 * 2 + (i & 1)


def _down(name, function):
    """The lowering of a reduction over the rows: each thread's, the eight lanes that share a column, the four warps."""
    put = "{ .reg .pred p; setp.ne.u32 p, $3, 0; @p st.shared.v2.f32 [$0], {$1, $2}; }"

    def rule(acc, scratch):
        need(is_accumulator(acc), f"{name}: of {acc}. It takes a register tile. Load a shared tile first.")
        _check(name, acc.cols, scratch, hasattr(scratch, "swizzle"))

        def emit(p, acc_v, scratch_at):
            b, c, thread = p.b, p.const, p.thread()
            place = b.add(scratch_at, b.shl(b.and_(thread, c(3)), c(3)))
            mine = b.add(place, p.scale(b.lshr(thread, c(5)), 4 * acc.cols))
            first = b.zext(b.icmp_unsigned("<", b.and_(thread, c(31)), c(4)), p.i32)
            totals = _of_lanes(p, function, _of_thread(p, function, acc, acc_v))
            for i in range(0, acc.cols // 4, 2):
                p(put, b.add(mine, c(16 * i)), totals[i], totals[i + 1], first)
            p.sync_worker(scratch.role)
            found = []
            for i in range(0, acc.cols // 4, 2):
                warps = [p("ld.shared.v2.f32 {$0, $1}, [$2];", b.add(place, c(4 * acc.cols * w + 16 * i)), out=[p.f32] * 2)
                         for w in range(_WARPS)]
                found += [_chain(p, function, [b.extract_value(pair, e) for pair in warps]) for e in range(2)]
            p.sync_worker(scratch.role)             # so that the tile may be written again
            return p.pack([found[_column(acc, i)] for i in range(acc.size)])
        return acc, emit
    return rule


def _chain(p, function, values):
    return functools.reduce(lambda total, x: function(p, total, x), values)


def _of_thread(p, function, acc, acc_v):
    elements = p.elements(acc_v)
    return [_chain(p, function, [x for i, x in enumerate(elements) if _column(acc, i) == n]) for n in range(acc.cols // 4)]


def _of_lanes(p, function, totals):
    for distance in (4, 8, 16):
        totals = [function(p, x, p(f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;", x, out=[p.f32])) for x in totals]
    return totals


@primitive(scope="warpgroup")
def col_max(acc, scratch):
    """The largest element of each column, in every row: a register tile of acc's shape, for arithmetic with other tiles.

    Args:
        acc: register tile [m, n]. scratch: shared tile of this worker's own, float32, at least 4 n elements, which only such calls use.
            The worker's threads meet: the next may follow at once.

    Returns: register tile [m, n], all rows alike. A NaN stays a NaN. ContractError for another shape or dtype.

    PTX: max.NaN.f32, shfl.sync.bfly, st.shared.v2.f32, bar.sync of the worker, ld.shared.v2.f32, bar.sync.
    """
    return _meet("col_max", np.maximum, acc, scratch)


@col_max.lowering
def _(acc, scratch):
    return _down("col_max", LARGER)(acc, scratch)


@primitive(scope="warpgroup")
def col_sum(acc, scratch):
    """The sum of each column, in every row, in an order of the executor's own, the same in each run.

    Args:
        acc, scratch: as in ``col_max``. Otherwise like it.

    PTX: add.f32, shfl.sync.bfly, st.shared.v2.f32, bar.sync of the worker, ld.shared.v2.f32, bar.sync.
    """
    return _meet("col_sum", np.add, acc, scratch)


@col_sum.lowering
def _(acc, scratch):
    return _down("col_sum", lambda p, a, b: p.b.fadd(a, b))(acc, scratch)
