"""Panels that a warpgroup stores by itself, lane by lane: which bytes of global memory it writes."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.errors import ContractError
from pknumba.lowering.types import AccumulatorType, TensorType, TileType

from .lanes import Lanes, lower
from .layouts import BASE, CONSUMER, fragments, values
from .tiny import dtype_of

TENSOR, DATA = 0x1000, 0x10_0000


def place(p, shape, dtype, pitch):
    """A tensor of that many rows of 0xee in the machine's memory."""
    p.machine.memory.put(DATA, np.full(shape[0] * pitch, 0xee, np.uint8).tobytes())
    p.machine.memory.put(TENSOR, struct.pack("<QQQIIIIQ", DATA, 0, pitch, *shape, 1, 0, 0))
    return TensorType("C", dtype, CONSUMER), p.const(TENSOR, p.i64)


@pytest.mark.parametrize("rows, cols, panels, count", [(64, 64, 4, 2), (128, 32, 3, 1), (64, 16, 11, 2), (128, 64, 1, 3)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_store_panel(dtype, rows, cols, panels, count):
    """Every panel of a tile at an edge: what lies beyond is left as it is."""
    x, shape, pitch = values((rows, cols * panels)), (rows + 37, 2 * cols * panels - 24), 4 * cols * panels + 48
    tile, acc = TileType("c", (count, 64, cols), dtype, 2 * cols, CONSUMER), AccumulatorType(*x.shape)
    for row, col in ((0, 0), (1, 1)):
        p = Lanes(BASE + count * 128 * cols)
        tensor, at = place(p, shape, dtype, pitch)
        _, emit = lower("store_panel", tensor, None, acc, types.int32, tile)
        for panel in range(panels):
            emit(p, at, [p.const(row), p.const(col * panels + panel)], fragments(x), p.const(panel), p.const(BASE))
        memory = p.machine.memory.segments[DATA].reshape(shape[0], pitch)
        found = np.ascontiguousarray(memory[:, :2 * shape[1]]).view(dtype_of(dtype))
        inside = found[row * rows:(row + 1) * rows, col * cols * panels:(col + 1) * cols * panels]
        assert (inside == x[:inside.shape[0], :inside.shape[1]].astype(dtype_of(dtype))).all()
        written = np.zeros(shape, bool)
        written[row * rows:(row + 1) * rows, col * cols * panels:(col + 1) * cols * panels] = True
        assert (found.view(np.uint16)[~written] == 0xeeee).all() and (memory[:, 2 * shape[1]:] == 0xee).all()


def test_refused():
    tensor, acc = TensorType("C", "bfloat16", CONSUMER), AccumulatorType(64, 64)
    with pytest.raises(ContractError, match="tiles of 64 rows"):
        lower("store_panel", tensor, None, acc, types.int32, TileType("c", (1, 128, 64), "bfloat16", 128, CONSUMER))
    with pytest.raises(ContractError, match="of the tensor's dtype"):
        lower("store_panel", tensor, None, acc, types.int32, TileType("c", (1, 64, 64), "float16", 128, CONSUMER))
    with pytest.raises(ContractError, match="divides its columns"):
        lower("store_panel", tensor, None, AccumulatorType(64, 96), types.int32, TileType("c", (1, 64, 64), "bfloat16", 128, CONSUMER))
