"""Whole rows lane by lane, by the machine's four warps: sums of squares, the sum over a block, rows scaled by it."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import TensorType, TileType
from pknumba.primitives.units import ALIGNED, STEP
from pknumba.templates.geometry import Rows, View, alignment
from pknumba.tiles import Role

from . import machine
from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, lit
from .tiny import dtype_of, ints

DTYPES = ("bfloat16", "float16", "float32")
PAIR, WARPS = types.UniTuple(types.int32, 5), 4
HEADS, DATA, FAR = 0x1000, 0x10_0000, 0x10_0000


@pytest.fixture(autouse=True)
def words(monkeypatch):
    """The machine learns moves between 16- and 32-bit registers, the reciprocal root, and barriers: its warps are always together."""
    def extend(m, match, args, registers, mask):
        machine._set(registers, args[0], machine.bits(machine._value(registers, args[1])) & np.uint32(0xffff), mask)
    root = machine._binary(lambda x: np.float32(1) / np.sqrt(x), machine.floats)
    monkeypatch.setattr(machine, "_TABLE", [*machine._TABLE, (r"cvt\.u(?:16|32)\.u(?:16|32)", extend), (r"rsqrt\.approx\.f32", root),
                                            (r"bar\.sync", lambda *_: None)])


class Arrays:
    """Arrays of rows in the machine's memory, ``gap`` elements between rows and one after the last."""

    def __init__(self, arrays, gap=0, shared_bytes=0):
        self.p, self.gap, self.shapes = Lanes(shared_bytes), gap, [x.shape for x in arrays]
        for i, x in enumerate(arrays):
            rows = np.full((x.shape[0], x.shape[1] + gap), 7, x.dtype)
            rows[:, :x.shape[1]] = x
            self.p.machine.memory.put(DATA + FAR * i, rows.tobytes())
            view = View(DATA + FAR * i, step=rows.strides[0] if x.shape[0] > 1 else 0)
            raw = bytearray(384)
            struct.pack_into("<Q", raw, 0, view.pointer)
            struct.pack_into("<q", raw, STEP, view.step)
            struct.pack_into("<I", raw, ALIGNED, alignment(view))
            self.p.machine.memory.put(HEADS + 0x200 * i, bytes(raw))

    def at(self, i):
        return self.p.const(HEADS + 0x200 * i, self.p.i64)

    def found(self, i, dtype):
        rows = self.p.machine.memory.segments[DATA + FAR * i].view(dtype).reshape(self.shapes[i][0], -1)
        assert (rows[:, self.shapes[i][1]:] == 7).all(), "written between rows"
        return rows[:, :self.shapes[i][1]]


def box_of(p, x):
    return [p.const(n) for n in Rows(x.shape, x.dtype.name).numbers]


def warp():
    """The number of each lane's warp."""
    return np.arange(machine.LANES, dtype=np.uint32) // 32


@pytest.mark.parametrize("length, gap", [(1, 0), (7, 0), (8, 8), (75, 0), (1100, 0), (1100, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_and_normalise(dtype, length, gap):
    x, y, weight = ints((3, length), dtype, 1, -5, 6), ints((3, length), dtype, 2), ints((1, length), dtype, 3, 1, 4)
    z, copied = ints((3, length), dtype, 4), length % 2 == 1 or gap > 0
    m, row, unroll, eps = Arrays([x, y, weight, z], gap), 1, 2, 0.5
    p, tensor = m.p, TensorType("T", dtype, COMMUNICATOR)
    box, part, parts = box_of(p, x), warp(), p.const(WARPS)
    argtypes = PAIR, types.int32, types.int32, types.int32, lit(unroll)
    _, emit = lower("squares", tensor, *argtypes)
    each = emit(p, m.at(0), box, p.const(row), part, parts, None)
    total = sum(each[32 * w] for w in range(WARPS))
    assert all((each[32 * w:32 * w + 32] == each[32 * w]).all() for w in range(WARPS)), "one number for all lanes of a warp"
    assert total == (x[row].astype(np.float64)**2).sum()
    _, emit = lower("normalise", tensor, tensor, tensor, *argtypes, types.float32, types.float64, tensor if copied else lit(None))
    emit(p, m.at(1), m.at(0), m.at(2), box, p.const(row), part, parts, None, np.full(machine.LANES, total, np.float32), eps,
         m.at(3) if copied else None)
    scale = np.float32(1) / np.sqrt(np.float32(total) * (np.float32(1) / np.float32(length)) + np.float32(eps))
    expected = y.copy()
    expected[row] = (x[row].astype(np.float32) * scale * weight[0].astype(np.float32)).astype(dtype_of(dtype))
    assert (m.found(1, y.dtype) == expected).all() and (m.found(0, x.dtype) == x).all()
    if copied:
        z[row] = x[row]
    assert (m.found(3, z.dtype) == z).all()


def test_over_warps():
    p = Lanes(4096)
    sums = TileType("sums", (WARPS, 8, 8), "float32", 32, Role("communicator", "warp", WARPS))
    _, emit = lower("over_warps", sums, types.int32, types.float32)
    for turn in range(2):
        assert (emit(p, p.const(1024), warp(), (warp() + turn).astype(np.float32)) == 6 + 4 * turn).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_box_with_one_more(dtype):
    """A tensor of this rank is added last, whole units and elements."""
    from .test_lanes_boxes import SOURCE, TARGET, Memory
    xs, ys = [ints((300,), dtype, r, -9, 10) for r in range(2)], [ints((300,), dtype, 7 + r) for r in range(2)]
    rows = Rows((300,), dtype)
    m = Memory(xs, ys, ((0, 0, 0), 0), ((0, 0, 0), 0), 1)
    tensor, p = TensorType("T", dtype, COMMUNICATOR), m.p
    argtypes = (tensor, tensor, types.int32, PAIR, lit(1), lit("sum"), types.int32, types.int32, lit(True), lit(False), tensor, lit(False),
                lit(8))
    for piece in range(-(-rows.numbers[-1] // 32)):
        numbers = [p.const(n) for n in rows.numbers]
        lower("reduce_box", *argtypes)[1](p, p.const(TARGET, p.i64), p.const(SOURCE, p.i64), p.const(piece), numbers, None, None,
                                          p.const(0), p.const(0), None, None, p.const(SOURCE, p.i64), None, None)
    total = (xs[0].astype(np.float32) + 2 * xs[1].astype(np.float32)).astype(xs[0].dtype)
    assert (m.found(2) == total).all() and (m.found(3) == total).all()
