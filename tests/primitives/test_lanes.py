"""Lowerings lane by lane: the bytes they read and write, computed from the very text they emit, against the layouts of the
PTX manual and of the bulk copy engine."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import AccumulatorType, OperandType, RowsType, TensorType, TileType
from pknumba.tiles import Role, Tile

from .lanes import Lanes, lower
from .tiny import dtype_of

CONSUMER, COMMUNICATOR = Role("consumer", "warpgroup"), Role("communicator", "warp", 8)
BASE = 2048
DTYPES = ("bfloat16", "float16", "float32")
THREAD = np.arange(128)
ROW, COL = 16 * (THREAD // 32) + THREAD % 32 // 4, 2 * (THREAD % 4)


def lit(x):
    return types.none if x is None else types.literal(x)


def values(shape, dtype="float32", seed=0):
    """Different values in every element, exact in every dtype."""
    x = np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) % 251 - 125
    return x.astype(dtype_of(dtype))


def shared_bytes(x, swizzle):
    """The bytes of a tile as the bulk copy engine writes it: panels one after the other, 16-byte chunks permuted by the row."""
    decl = Tile(x.shape, x.dtype.name, swizzle)
    out = np.zeros(x.nbytes, np.uint8)
    r, c = np.indices(x.shape)
    at = c // decl.panel * x.shape[0] * swizzle + r * swizzle + c % decl.panel * x.itemsize
    at ^= (at >> 7 & swizzle // 16 - 1) << 4
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.itemsize)
    for byte in range(x.itemsize):
        out[at + byte] = raw[..., byte]
    return out


def fragments(x):
    """A matrix as the register arrays of an accumulator: element i of each thread."""
    rows, cols = x.shape
    return [x[64 * m + ROW + 8 * (i >> 1 & 1), 8 * (i // 4) + COL + (i & 1)].astype(np.float32)
            for m in range(rows // 64) for i in range(cols // 2)]


def matrix(elements, rows, cols):
    """The inverse of ``fragments``."""
    x = np.full((rows, cols), np.nan, np.float32)
    for n, element in enumerate(elements):
        m, i = divmod(n, cols // 2)
        x[64 * m + ROW + 8 * (i >> 1 & 1), 8 * (i // 4) + COL + (i & 1)] = element
    return x


def row_slots(v):
    """A row vector as register arrays, and back."""
    return [v[64 * (s // 2) + ROW + 8 * (s % 2)].astype(np.float32) for s in range(len(v) // 32)]


def rows_of(slots):
    v = np.full(32 * len(slots), np.nan, np.float32)
    for s, slot in enumerate(slots):
        at = 64 * (s // 2) + ROW + 8 * (s % 2)
        assert (v[at][THREAD % 4 != 0] == slot[THREAD % 4 != 0]).all() or np.isnan(v[at]).all()
        v[at] = slot
        assert (v[at] == slot).all(), "the threads of a quad disagree"
    return v


@pytest.mark.parametrize("rows, cols", [(64, 64), (128, 96), (64, 256)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_load(dtype, swizzle, rows, cols):
    if cols % Tile((rows, cols), dtype, swizzle).panel:
        pytest.skip("no such tile")
    x = values((rows, cols), dtype)
    tile = TileType("t", x.shape, dtype, swizzle, CONSUMER)
    acc, emit = lower("load", tile)
    p = Lanes(BASE + x.nbytes)
    p.machine.shared[BASE:] = shared_bytes(x, swizzle)
    assert acc == AccumulatorType(rows, cols)
    assert (matrix(emit(p, p.const(BASE)), rows, cols) == x.astype(np.float32)).all()


@pytest.mark.parametrize("rows, cols, panels", [(64, 64, 1), (128, 64, 2), (64, 32, 3)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store(dtype, swizzle, rows, cols, panels):
    if cols % Tile((rows, cols), dtype, swizzle).panel:
        pytest.skip("no such tile")
    x = values((rows, cols * panels), dtype)
    tile, acc = TileType("t", (rows, cols), dtype, swizzle, CONSUMER), AccumulatorType(*x.shape)
    _, emit = lower("store", tile, acc, types.int32)
    for panel in range(panels):
        part = x[:, panel * cols:(panel + 1) * cols]
        p = Lanes(BASE + part.nbytes)
        emit(p, p.const(BASE), fragments(x), p.const(panel))
        assert (p.machine.shared[BASE:] == shared_bytes(part, swizzle)).all()


def test_store_rounds_to_nearest_even():
    x = np.full((64, 64), 1 + 3 / 256, np.float32)             # halfway between two bfloat16: the even one is above
    _, emit = lower("store", TileType("t", x.shape, "bfloat16", 128, CONSUMER), AccumulatorType(*x.shape), types.int32)
    p = Lanes(x.size * 2)
    emit(p, p.const(0), fragments(x), p.const(0))
    assert (p.machine.shared == shared_bytes(x.astype(dtype_of("bfloat16")), 128)).all()


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("a_swizzle", [None, 32, 64, 128])
@pytest.mark.parametrize("by_row, b_swizzle", [(True, 128), (True, 64), (True, 32), (False, 128), (False, 64), (False, 32)])
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (128, 128, 64)])
def test_mma(dtype, a_swizzle, by_row, b_swizzle, m, n, k):
    """A from registers (None) or shared memory with each swizzle, B in both orders with each swizzle."""
    a, b = values((m, k), dtype, 1), values((n, k) if by_row else (k, n), dtype, 2)
    acc = AccumulatorType(m, n)
    a_type = OperandType(m, k, dtype) if a_swizzle is None else TileType("a", a.shape, dtype, a_swizzle, CONSUMER)
    b_type = TileType("b", b.shape, dtype, b_swizzle, CONSUMER)
    result, emit = lower("mma", acc, a_type, b_type, types.boolean, lit(by_row))
    at_b = BASE + a.nbytes
    p = Lanes(at_b + b.nbytes)
    if a_swizzle is None:
        a_value = lower("as_operand", AccumulatorType(m, k), lit(dtype))[1](p, fragments(a), None)
        assert len(a_value) == a_type.size
    else:
        p.machine.shared[BASE:at_b] = shared_bytes(a, a_swizzle)
        a_value = p.const(BASE)
    p.machine.shared[at_b:] = shared_bytes(b, b_swizzle)
    right = b.T if by_row else b
    product = a.astype(np.float32) @ right.astype(np.float32)
    found = emit(p, p.undefined(acc), a_value, p.const(at_b), p.const(0), None)
    assert result == acc and (matrix(found, m, n) == product).all()
    again = emit(p, found, a_value, p.const(at_b), p.const(1), None)
    assert (matrix(again, m, n) == 2 * product).all()


@pytest.mark.parametrize("last, slope", [(5, 0), (-1, 0), (70, 0), (0, 1), (-17, 1), (100, -2)])
def test_mask(last, slope):
    x, acc = values((128, 64)), AccumulatorType(128, 64)
    result, emit = lower("mask", acc, types.int32, lit(slope))
    p = Lanes()
    r, c = np.indices(x.shape)
    expected = np.where(c <= last + slope * r, x, -np.inf)
    assert (matrix(emit(p, fragments(x), p.const(last), None), 128, 64) == expected).all()


def test_reductions_of_rows():
    x, acc = values((128, 40)), AccumulatorType(128, 40)
    for name, expected in (("row_max", x.max(1)), ("row_sum", x.sum(1))):
        result, emit = lower(name, acc)
        assert result == RowsType(128) and (rows_of(emit(Lanes(), fragments(x))) == expected).all()
    x[3, 7] = np.nan
    found = lower("row_max", acc)[1](Lanes(), fragments(x))
    assert np.isnan(found[0][ROW == 3]).all()


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_cast(dtype):
    x, acc = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), AccumulatorType(64, 64)
    _, emit = lower("cast", acc, lit(dtype))
    assert (matrix(emit(Lanes(), fragments(x), None), 64, 64) == x.astype(dtype_of(dtype)).astype(np.float32)).all()


def test_elements():
    x, y, v = values((64, 32), seed=1), values((64, 32), seed=2), values(64, seed=3)
    acc, rows = AccumulatorType(64, 32), RowsType(64)
    for name, function in (("maximum", np.maximum), ("minimum", np.minimum)):
        for argtypes, given, expected in (((acc, acc), (fragments(x), fragments(y)), function(x, y)),
                                          ((rows, acc), (row_slots(v), fragments(x)), function(x, v[:, None])),
                                          ((acc, types.float32), (fragments(x), 1.0), function(x, 1))):
            result, emit = lower(name, *argtypes)
            assert result == acc and (matrix(emit(Lanes(), *given), 64, 32) == expected).all()
    small = x / 16
    result, emit = lower("exp2", rows)
    assert result == rows and (rows_of(emit(Lanes(), row_slots(v / 16))) == np.exp2(v / 16)).all()
    assert (matrix(lower("log2", acc)[1](Lanes(), fragments(np.exp2(small))), 64, 32) == np.log2(np.exp2(small))).all()
    assert (matrix(lower("fill", lit(64), lit(32), types.float32)[1](Lanes(), None, None, 2.5), 64, 32) == 2.5).all()
    assert (rows_of(lower("fill_rows", lit(64), types.float32)[1](Lanes(), None, 2.5)) == 2.5).all()


# ---- global memory
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
    result, emit = lower("load_rows", tensor, types.UniTuple(types.int32, 2), lit(rows))
    assert result == RowsType(rows) and (rows_of(emit(w.p, at, w.coord(coord), None)) == expected).all()
    new = values(rows, seed=5)
    lower("store_rows", tensor, types.UniTuple(types.int32, 2), RowsType(rows))[1](w.p, at, w.coord(coord), row_slots(new))
    part = before[coord[0]:coord[0] + 1, coord[1] * rows:(coord[1] + 1) * rows]
    part[...] = new[:part.shape[1]]
    assert (w.read(w.bases[0], shape, before.dtype) == before).all()
