"""Moves of boxes lane by lane: which bytes they read and write, for rows and slots that lie anyhow, at every alignment."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import TensorType
from pknumba.primitives.units import ALIGNED, STEP, STRIDES
from pknumba.templates.geometry import Box, Form, View, alignment

from . import machine
from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, lit
from .tiny import dtype_of, ints

SOURCE, TARGET, TABLES, DATA, FAR, MULTICAST = 0x1000, 0x1400, 0x2000, 0x10_0000, 0x10_0000, 0x1000_0000
DTYPES = ("bfloat16", "float16", "float32", "int32")
PAIR = types.UniTuple(types.int32, 5)


@pytest.fixture(autouse=True)
def conversions(monkeypatch):
    """The machine learns the moves between 16- and 32-bit registers."""
    def extend(m, match, args, registers, mask):
        machine._set(registers, args[0], machine.bits(machine._value(registers, args[1])) & np.uint32(0xffff), mask)
    monkeypatch.setattr(machine, "_TABLE", [*machine._TABLE, (r"cvt\.u(?:16|32)\.u(?:16|32)", extend)])


class Memory:
    """Every rank's source and target in the machine's memory: arrays inside larger ones whose other bytes are 0xee."""

    def __init__(self, sources, targets, source_layout, target_layout, rank, shift=0):
        self.p, self.rank, self.size = Lanes(), rank, len(sources)
        self.memory, self.shift = self.p.machine.memory, shift
        self.arrays = [self._put(DATA + FAR * i, x) for i, x in enumerate([*sources, *targets])]
        n = self.size
        self._tensor(SOURCE, TABLES, 0, source_layout)
        self._tensor(TARGET, TABLES + 8 * n, n, target_layout)
        bases = [DATA + FAR * i + shift * (i >= n) for i in range(2 * n)]
        self.memory.put(TABLES, struct.pack(f"<{2 * n}Q", *bases))

    def _put(self, base, x):
        shift = self.shift if base >= DATA + FAR * self.size else 0
        raw = np.full(x.nbytes + 64, 0xee, np.uint8)
        raw[shift:shift + x.nbytes] = np.ascontiguousarray(x).view(np.uint8).reshape(-1)
        self.memory.put(base, raw.tobytes())
        return base, shift, x

    def _tensor(self, at, table, first, layout):
        pointer = DATA + FAR * (first + self.rank) + self.shift * (first > 0)
        view = View(pointer, None, 0, *layout)
        raw = bytearray(384)
        struct.pack_into("<QQQIIIIQ", raw, 0, pointer, table, 0, 0, 0, self.size, self.rank, MULTICAST + FAR * first)
        self.memory.multicast[MULTICAST + FAR * first] = [DATA + FAR * (first + r) for r in range(self.size)]
        for place, s in zip(STRIDES, view.strides):
            struct.pack_into("<q", raw, place, s)
        struct.pack_into("<q", raw, STEP, view.step)
        struct.pack_into("<I", raw, ALIGNED, alignment(view))
        self.memory.put(at, bytes(raw))

    def found(self, i):
        """The i-th array now; nothing beside it was written."""
        base, shift, x = self.arrays[i]
        raw = self.memory.segments[base]
        assert (raw[:shift] == 0xee).all() and (raw[shift + x.nbytes:] == 0xee).all(), "written beside an array"
        return raw[shift:shift + x.nbytes].view(x.dtype).reshape(x.shape)


#: (shape of x, of y, dims of a box, x_slot, y_slot, how to index slot s of x, of y)
LAYOUTS = {
    "flat": ((1100,), (1100,), (1100,), None, None),
    "short": ((3,), (3,), (3,), None, None),
    "gather rows": ((5, 24), (15, 24), (5, 24), None, (0, 5)),
    "gather columns": ((5, 24), (5, 72), (5, 24), None, (1, 24)),
    "gather odd columns": ((6, 7), (6, 21), (6, 7), None, (1, 7)),
    "scatter middle": ((4, 9, 8), (4, 3, 8), (4, 3, 8), (1, 3), None),
    "transpose": ((2, 6, 4, 8), (2, 18, 2, 8), (2, 6, 2, 8), (2, 2), (1, 6)),
    "single elements": ((40, 3), (40, 1), (40, 1), (1, 1), None),
    "many short rows": ((2, 90, 72), (2, 90, 24), (2, 90, 24), (2, 24), None),
    "rows of more than a warp": ((2, 21, 3, 290), (2, 21, 1, 290), (2, 21, 1, 290), (2, 1), None),
}


def part(x, form_slot, dims, number):
    """The box of slot ``number`` as a view of x."""
    index = [slice(0, n) for n in dims]
    if form_slot:
        axis, extent = form_slot
        index[axis] = slice(number * extent, number * extent + dims[axis])
    return x[tuple(index)]


def _box(name, dtype, x, y):
    _, _, dims, x_slot, y_slot = LAYOUTS[name]
    return Box("test", Form(y.shape, dims, x_slot, y_slot), dtype, x.strides, y.strides)


@pytest.mark.parametrize("shift, to", [(0, "own"), (0, "all"), (4, "peer"), (2, "own")])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_copy_box(name, dtype, shift, to):
    if shift % dtype_of(dtype).itemsize:
        pytest.skip("no such address")
    shape, out, dims, x_slot, y_slot = LAYOUTS[name]
    xs, ys = [ints(shape, dtype, r, -99, 100) for r in range(2)], [ints(out, dtype, 7 + r) for r in range(2)]
    box = _box(name, dtype, xs[0], ys[0])
    slot, to_slot, peer, unroll = (1 if x_slot else 0), (2 if y_slot else 0), 1, 2
    m = Memory(xs, ys, box.x, box.y, 0, shift)
    tensor = TensorType("T", dtype, COMMUNICATOR)
    _, emit = lower("copy_box", tensor, tensor, types.int32, PAIR, lit(unroll), types.int32, types.int32, types.int32, types.int32,
                    lit(to == "all"))
    p = m.p
    for piece in range(-(-box.numbers[-1] // (32 * unroll)) + 1):           # and one beyond the end
        emit(p, p.const(TARGET, p.i64), p.const(SOURCE, p.i64), p.const(piece), [p.const(n) for n in box.numbers], None, p.const(to_slot),
             p.const(slot), p.const(peer), p.const(1) if to == "peer" else None, None)
    for rank in range(2):
        expected = ys[rank].copy()
        if to == "all" or rank == (to == "peer"):
            part(expected, y_slot, dims, to_slot)[...] = part(xs[peer], x_slot, dims, slot)
        assert (m.found(2 + rank) == expected).all()
    assert all((m.found(i) == x).all() for i, x in enumerate(xs)), "another array was written"


@pytest.mark.parametrize("shift", [0, 4, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_copy_boxes(name, dtype, shift):
    """Of three ranks, two at a time where there is one of each: the last of the second pair is nobody."""
    if shift % dtype_of(dtype).itemsize:
        pytest.skip("no such address")
    shape, out, dims, x_slot, y_slot = LAYOUTS[name]
    many = 3 if y_slot else 1                                               # ranks, each with a slot of its own in the result
    xs, ys = [ints(shape, dtype, r, -99, 100) for r in range(many)], [ints(out, dtype, 7 + r) for r in range(many)]
    box, unroll, rank = _box(name, dtype, xs[0], ys[0]), 2, many // 2
    m = Memory(xs, ys, box.x, box.y, rank, shift)
    tensor = TensorType("T", dtype, COMMUNICATOR)
    _, emit = lower("copy_boxes", tensor, tensor, types.int32, PAIR, lit(unroll), lit(4))
    for piece in range(-(-box.numbers[-1] // (32 * unroll)) + 1):
        emit(m.p, m.p.const(TARGET, m.p.i64), m.p.const(SOURCE, m.p.i64), m.p.const(piece), [m.p.const(n) for n in box.numbers], None, None)
    for r in range(many):
        expected = ys[r].copy()
        for peer in range(many if r == rank else 0):
            part(expected, y_slot, dims, peer)[...] = part(xs[peer], x_slot, dims, rank)
        assert (m.found(many + r) == expected).all()
        assert (m.found(r) == xs[r]).all()


@pytest.mark.parametrize("everywhere, multicast, here", [(False, False, False), (True, False, False), (False, True, False),
                                                         (True, True, False), (True, False, True)])
@pytest.mark.parametrize("op, function", [("sum", np.add), ("min", np.minimum), ("max", np.maximum)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["flat", "scatter middle", "gather odd columns"])
def test_reduce_box(name, dtype, op, function, everywhere, multicast, here):
    if multicast and (dtype == "int32" or dtype == "float32" and op != "sum"):
        pytest.skip("the switch has no such instruction")
    if here and name != "scatter middle":
        pytest.skip("one slot")
    shape, out, dims, x_slot, y_slot = LAYOUTS[name]
    xs, ys = [ints(shape, dtype, r, -9, 10) for r in range(3)], [ints(out, dtype, 7 + r) for r in range(3)]
    box = _box(name, dtype, xs[0], ys[0])
    slot, to_slot, unroll, rank = (2 if x_slot else 0), (1 if y_slot else 0), {"flat": 4, "scatter middle": 1}.get(name, 2), 1
    m = Memory(xs, ys, box.x, box.y, rank)
    tensor = TensorType("T", dtype, COMMUNICATOR)
    _, emit = lower("reduce_box", tensor, tensor, types.int32, PAIR, lit(unroll), lit(op), types.int32, types.int32, lit(everywhere),
                    lit(multicast), lit(None), lit(here), lit(4))
    p = m.p
    for piece in range(-(-box.numbers[-1] // (32 * unroll)) + 1):
        emit(p, p.const(TARGET, p.i64), p.const(SOURCE, p.i64), p.const(piece), [p.const(n) for n in box.numbers], None, None,
             p.const(to_slot), p.const(slot), *[None] * 5)
    terms = [part(xs[rank], x_slot, dims, s) for s in range(3)] if here else [part(x, x_slot, dims, slot) for x in xs]
    total = function.reduce([x.astype(np.float32) for x in terms])
    for r in range(3):
        expected = ys[r].copy()
        if everywhere or r == rank:
            part(expected, y_slot, dims, to_slot)[...] = total.astype(expected.dtype)
        assert (m.found(3 + r) == expected).all()
        assert (m.found(r) == xs[r]).all()
    moved = {n for n in p.machine.executed if "v4" in n}
    assert any(n.startswith("multimem.ld_reduce") for n in moved) == any(n.startswith("multimem") for n in moved) == multicast
