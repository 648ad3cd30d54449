"""Lowerings over ranks lane by lane: which bytes of every rank's memory they read and write, multicast included."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import RowsType, TensorType

from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, CONSUMER, lit, row_slots, rows_of, values

TENSOR, OUT, TABLE, DATA, OWN, MULTICAST, FAR = 0x1000, 0x1400, 0x2000, 0x10_0000, 0x80_0000, 0x100_0000, 0x1_0000


class World:
    """A symmetric tensor of every rank in the machine's memory, rows padded to 16 bytes, and a private ``out``."""

    def __init__(self, arrays, rank, out=None):
        self.arrays, self.rank, x = arrays, rank, arrays[0]
        self.pitch = -(-x.shape[1] * x.itemsize // 16) * 16
        self.p = Lanes()
        self.memory = self.p.machine.memory
        self.bases = [DATA + FAR * r for r in range(len(arrays))]
        for base, array in zip(self.bases, arrays):
            self.memory.put(base, self._padded(array))
        self.memory.put(TABLE, struct.pack(f"<{len(arrays)}Q", *self.bases))
        self.memory.multicast[MULTICAST] = self.bases
        self.memory.put(TENSOR, self._header(self.bases[rank], x.shape, TABLE))
        if out is not None:
            self.memory.put(OWN, self._padded(out))
            self.memory.put(OUT, self._header(OWN, out.shape, 0))

    def _padded(self, array):
        full = np.full((array.shape[0], self.pitch), 0xee, np.uint8)
        full[:, :array.shape[1] * array.itemsize] = np.ascontiguousarray(array).view(np.uint8).reshape(array.shape[0], -1)
        return full.tobytes()

    def _header(self, pointer, shape, peers):
        return struct.pack("<QQQIIIIQ", pointer, peers, self.pitch, *shape, len(self.arrays), self.rank, MULTICAST)

    def read(self, base, shape, dtype):
        raw = self.memory.segments[base].reshape(shape[0], self.pitch)
        width = shape[1] * dtype.itemsize
        assert (raw[:, width:] == 0xee).all(), "written beyond the edge"
        return np.ascontiguousarray(raw[:, :width]).view(dtype)

    def coord(self, at):
        return [self.p.const(x) for x in at]


def _tensor(dtype):
    return TensorType("C", dtype, COMMUNICATOR)


def _shape(rows, cols):
    return types.Tuple([lit(rows), lit(cols)])


def _window(x, coord, shape):
    (i, j), (m, n) = coord, shape
    return x[i * m:(i + 1) * m, j * n:(j + 1) * n]


CASES = [("bfloat16", (24, 64), (8, 32), (1, 1)), ("float16", (20, 40), (16, 32), (1, 1)), ("float32", (9, 21), (8, 16), (0, 1)),
         ("bfloat16", (8, 7), (8, 8), (0, 0)), ("float32", (70, 64), (64, 32), (0, 0)), ("bfloat16", (8, 8), (8, 8), (1, 1))]


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("op, function", [("sum", np.add), ("min", np.minimum), ("max", np.maximum)])
@pytest.mark.parametrize("dtype, shape, window, coord", CASES)
def test_all_reduce(dtype, shape, window, coord, op, function, multicast):
    if multicast and op != "sum" and dtype == "float32":
        pytest.skip("the switch has no such instruction")
    before = [values(shape, dtype, r) for r in range(3)]
    total = before[0].astype(np.float32)
    for x in before[1:]:
        total = function(total, x.astype(np.float32))
    w = World(before, 1)
    _, emit = lower("all_reduce", _tensor(dtype), types.UniTuple(types.int32, 2), _shape(*window), lit(op), lit(multicast))
    emit(w.p, w.p.const(TENSOR, w.p.i64), w.coord(coord), None, None, None)
    for base, x in zip(w.bases, before):
        expected = x.copy()
        _window(expected, coord, window)[...] = _window(total, coord, window)
        assert (w.read(base, shape, x.dtype) == expected).all()
    moved = {name for name, count in w.p.machine.executed.items() if "v4" in name and "global" in name}
    assert all(name.startswith("multimem.") == multicast for name in moved)


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("dtype, shape, window, coord", CASES)
def test_reduce(dtype, shape, window, coord, multicast):
    before = [values(shape, dtype, r) for r in range(2)]
    total = sum(x.astype(np.float32) for x in before)
    w = World(before, 1)
    argtypes = _tensor(dtype), types.UniTuple(types.int32, 2), _shape(*window), lit(None), lit(None), lit("sum"), lit(multicast)
    lower("reduce", *argtypes)[1](w.p, w.p.const(TENSOR, w.p.i64), w.coord(coord), None, None, None, None, None)
    expected = before[1].copy()
    _window(expected, coord, window)[...] = _window(total, coord, window)
    assert (w.read(w.bases[1], shape, expected.dtype) == expected).all()
    assert (w.read(w.bases[0], shape, expected.dtype) == before[0]).all(), "another rank's tensor was written"


def test_reduce_elsewhere():
    before, out = [values((24, 40), "bfloat16", r) for r in range(2)], values((8, 40), "bfloat16", 9)
    w = World(before, 0, out)
    pair = types.UniTuple(types.int32, 2)
    _, emit = lower("reduce", _tensor("bfloat16"), pair, _shape(8, 32), _tensor("bfloat16"), pair, lit("sum"), lit(False))
    emit(w.p, w.p.const(TENSOR, w.p.i64), w.coord((2, 1)), None, w.p.const(OUT, w.p.i64), w.coord((0, 1)), None, None)
    out[:, 32:] = (before[0].astype(np.float32) + before[1].astype(np.float32))[16:, 32:]
    assert (w.read(OWN, out.shape, out.dtype) == out).all()
    assert all((w.read(base, x.shape, x.dtype) == x).all() for base, x in zip(w.bases, before))


@pytest.mark.parametrize("multicast", [False, True])
@pytest.mark.parametrize("dtype, shape, window, coord", CASES)
def test_broadcast(dtype, shape, window, coord, multicast):
    before = [values(shape, dtype, r) for r in range(3)]
    w = World(before, 2)
    _, emit = lower("broadcast", _tensor(dtype), types.UniTuple(types.int32, 2), _shape(*window), lit(multicast))
    emit(w.p, w.p.const(TENSOR, w.p.i64), w.coord(coord), None, None)
    for base, x in zip(w.bases, before):
        expected = x.copy()
        _window(expected, coord, window)[...] = _window(before[2], coord, window)
        assert (w.read(base, shape, x.dtype) == expected).all()


@pytest.mark.parametrize("shape, coord, rows", [((3, 256), (1, 1), 64), ((2, 100), (0, 0), 128), ((2, 100), (2, 0), 64)])
def test_rows_in_global_memory(shape, coord, rows):
    before, tensor = values(shape), TensorType("L", "float32", CONSUMER)
    padded = np.zeros((shape[0] + 1, (coord[1] + 1) * rows + shape[1]), np.float32)
    padded[:shape[0], :shape[1]] = before
    expected = padded[coord[0], coord[1] * rows:(coord[1] + 1) * rows]
    w = World([before], 0)
    at = w.p.const(TENSOR, w.p.i64)
    result, emit = lower("load_rows", tensor, types.UniTuple(types.int32, 2), lit(rows), types.none)
    assert result == RowsType(rows) and (rows_of(emit(w.p, at, w.coord(coord), None, None)) == expected).all()
    new = values(rows, seed=5)
    lower("store_rows", tensor, types.UniTuple(types.int32, 2), RowsType(rows))[1](w.p, at, w.coord(coord), row_slots(new))
    part = before[coord[0]:coord[0] + 1, coord[1] * rows:(coord[1] + 1) * rows]
    part[...] = new[:part.shape[1]]
    assert (w.read(w.bases[0], shape, before.dtype) == before).all()
