"""Reductions over rows, lane by lane: four warps that meet in shared memory."""

import numpy as np
import pytest

from pknumba.lowering.types import AccumulatorType, TileType

from .lanes import Lanes, lower
from .layouts import BASE, CONSUMER, fragments, matrix, values


def reduced(name, x):
    """(what every lane finds, the machine, the bytes of the scratch)."""
    acc, scratch = AccumulatorType(*x.shape), TileType("c", (8, x.shape[1]), "float32", 32, CONSUMER)
    result, emit = lower(name, acc, scratch)
    p = Lanes(BASE + scratch.nbytes)
    p.machine.shared[:] = 0xff
    assert result == acc
    found = matrix(emit(p, fragments(x), p.const(BASE)), *x.shape)
    return found, p.machine, p.machine.shared[BASE:].view(np.float32)


@pytest.mark.parametrize("rows, cols", [(64, 8), (64, 64), (128, 40), (192, 256)])
def test_columns(rows, cols):
    x = values((rows, cols))
    for name, function in (("col_max", np.maximum), ("col_sum", np.add)):
        found, machine, scratch = reduced(name, x)
        assert (found == function.reduce(x, axis=0)).all()
        assert (scratch[:4 * cols].reshape(4, cols) == function.reduce(x.reshape(-1, 4, 16, cols), axis=(0, 2))).all()
        assert np.isnan(scratch[4 * cols:]).all() and (machine.shared[:BASE] == 0xff).all(), "nothing else is written"
        assert machine.executed["bar.sync"] == 2 and machine.executed["shfl.sync.bfly.b32"] == 3 * cols // 4


def test_warps_are_added_in_order():
    x = np.zeros((64, 8), np.float32)
    x[[0, 16, 32, 48], 3] = 1e8, 1, -1e8, 1                     # one of each warp: another order gives 2 or 0
    assert (reduced("col_sum", x)[0][:, 3] == 1).all()


@pytest.mark.parametrize("row", [0, 9, 127])
def test_nan_stays(row):
    x = values((128, 40))
    x[row, 7] = np.nan
    for name in ("col_max", "col_sum"):
        assert (np.isnan(reduced(name, x)[0]) == (np.arange(40) == 7)).all()
