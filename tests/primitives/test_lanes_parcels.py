"""Packets lane by lane: what is sent where with which flags, what is taken from which ranks; messages, rows and boxes of any layout."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.ptx import COUNTER
from pknumba.lowering.types import CountersType, TensorType
from pknumba.primitives.units import ALIGNED, STEP, STRIDES
from pknumba.templates.geometry import Box, Form, View, alignment

from . import machine
from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, lit
from .tiny import ints

SOURCE, INBOX, TARGET, TABLE, FAR = 0x1000, 0x1400, 0x1800, 0x2000, 0x100_0000
DATA, INBOXES, RESULT = FAR, 2 * FAR, 32 * FAR
PAIR, SIZE, CALL = types.UniTuple(types.int32, 5), 6, 7
COUNTERS = CountersType("arrived", 1, COMMUNICATOR)
DTYPES = ("bfloat16", "float32", "int32")


class Polls(Lanes):
    """Lanes whose bounded wait looks once: everything must be there."""

    def __init__(self):
        super().__init__(2048)
        self.gone = []

    def shared_base(self):
        return self.const(1024)

    def spin(self, poll, base, *args, declare="", seen=0, after="", warp=False):
        text = f"{{ .reg .pred p; {declare} {poll} selp.b32 $0, 1, 0, p; {after} }}"
        written = self.machine.run(text, [None] * (1 + seen) + [base, *args], self.active)
        return [written[i] for i in range(1 + seen)]

    def give_up(self, role, kind, which, expected, seen, base=None):
        lanes = np.flatnonzero(self.active)
        if lanes.size:
            self.gone.append((kind, int(np.broadcast_to(which, machine.LANES)[lanes[0]])))


@pytest.fixture(autouse=True)
def words(monkeypatch):
    """The machine learns what polls are made of."""
    def extend(m, match, args, registers, mask):
        machine._set(registers, args[0], machine.bits(machine._value(registers, args[1])) & np.uint32(0xffff), mask)

    def equal(m, match, args, registers, mask):
        found = machine.bits(machine._value(registers, args[1])) == machine.bits(machine._value(registers, args[2]))
        machine._set(registers, args[0], found & np.broadcast_to(registers[args[3]], machine.LANES) if match[1] else found, mask)

    def select(m, match, args, registers, mask):
        a, b = (machine.bits(machine._value(registers, x)) for x in args[1:3])
        machine._set(registers, args[0], np.where(np.broadcast_to(registers[args[3]], machine.LANES), a, b), mask)

    def pack(m, match, args, registers, mask):
        if isinstance(args[1], list):
            low, high = (machine.bits(machine._value(registers, x)).astype(np.uint64) for x in args[1])
            machine._set(registers, args[0], low | high << np.uint64(32), mask)
        else:
            value = np.broadcast_to(registers[args[1]], machine.LANES).astype(np.uint64)
            machine._set(registers, args[0][0], value.astype(np.uint32), mask)
            machine._set(registers, args[0][1], (value >> np.uint64(32)).astype(np.uint32), mask)
    table = [(r"mov\.b64", pack), (r"setp\.eq(\.and)?\.u32", equal), (r"selp\.b32", select), (r"cvt\.u(?:16|32)\.u(?:16|32)", extend)]
    monkeypatch.setattr(machine, "_TABLE", table + machine._TABLE)


def tensor(p, at, pointer, layout, rank, table=0):
    """The parameter of a tensor."""
    raw, view = bytearray(384), View(pointer, None, 0, *layout)
    struct.pack_into("<QQQIIIIQ", raw, 0, pointer, table, 0, 0, 0, SIZE, rank, 0)
    for place, s in zip(STRIDES, view.strides):
        struct.pack_into("<q", raw, place, s)
    struct.pack_into("<q", raw, STEP, view.step)
    struct.pack_into("<I", raw, ALIGNED, alignment(view))
    p.machine.memory.put(at, bytes(raw))


def inboxes(p, units, rank):
    """Empty inboxes of every rank for boxes of that many units."""
    for r in range(SIZE):
        p.machine.memory.put(INBOXES + r * FAR, bytes(2 * SIZE * -(-units // 32) * 32 * 32))
    p.machine.memory.put(TABLE, struct.pack(f"<{SIZE}Q", *(INBOXES + r * FAR for r in range(SIZE))))
    tensor(p, INBOX, INBOXES + rank * FAR, ((0, 0, 0), 0), rank, TABLE)


#: (shape of x, of y, dims of a box, slot axes): flat with a tail, strided rows of single elements, rows of units and tails.
LAYOUTS = {"flat": ((SIZE * 333,), (SIZE * 333,), (333,), (0, 333), (0, 333)),
           "columns": ((40, SIZE), (40, SIZE), (40, 1), (1, 1), (1, 1)),
           "transpose": ((2, 4, 3 * SIZE, 8), (2, 4 * SIZE, 3, 8), (2, 4, 3, 8), (2, 3), (1, 4))}


def part(x, slot, dims, number):
    index = [slice(0, n) for n in dims]
    index[slot[0]] = slice(number * slot[1], number * slot[1] + dims[slot[0]])
    return x[tuple(index)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_boxes(name, dtype):
    """Every rank sends each its part; one rank takes all, or combines them."""
    shape, out, dims, x_slot, y_slot = LAYOUTS[name]
    xs, y, me, p = [ints(shape, dtype, r, -9, 10) for r in range(SIZE)], ints(out, dtype, 9), 4, Polls()
    box = Box("test", Form(out, dims, x_slot, y_slot), dtype, xs[0].strides, y.strides)
    numbers, units, i64 = [p.const(n) for n in box.numbers], box.numbers[-1], p.i64
    inboxes(p, units, me)
    kind = TensorType("T", dtype, COMMUNICATOR)
    pieces = range(-(-units // 32) + 1)
    _, send = lower("send_box", kind, kind, types.int32, PAIR, types.int32, COUNTERS, types.int32, types.int32)
    for rank, x in enumerate(xs):
        p.machine.memory.put(DATA, np.ascontiguousarray(x).tobytes())
        tensor(p, SOURCE, DATA, box.x, rank)
        tensor(p, INBOX, INBOXES + rank * FAR, ((0, 0, 0), 0), rank, TABLE)
        for piece in pieces:
            send(p, p.const(INBOX, i64), p.const(SOURCE, i64), p.const(piece), numbers, p.const(CALL), None, p.const(me), p.const(me))
    assert not any(p.machine.memory.segments[INBOXES + r * FAR].any() for r in range(SIZE) if r != me), "sent to somebody else"
    tensor(p, INBOX, INBOXES + me * FAR, ((0, 0, 0), 0), me, TABLE)
    tensor(p, TARGET, RESULT, box.y, me)
    p.machine.memory.put(RESULT, np.ascontiguousarray(y).tobytes())
    for piece in pieces:
        _, take = lower("take_boxes", kind, kind, types.int32, PAIR, types.int32, COUNTERS)
        take(p, p.const(TARGET, i64), p.const(INBOX, i64), p.const(piece), numbers, p.const(CALL), None)
    expected = y.copy()
    for r, x in enumerate(xs):
        part(expected, y_slot, dims, r)[...] = part(x, x_slot, dims, me)
    assert (p.machine.memory.segments[RESULT].view(y.dtype).reshape(out) == expected).all() and not p.gone
    p.machine.memory.put(RESULT, np.ascontiguousarray(y).tobytes())
    for piece in pieces:
        _, combine = lower("reduce_boxes", kind, kind, types.int32, PAIR, types.int32, COUNTERS, lit("sum"))
        combine(p, p.const(TARGET, i64), p.const(INBOX, i64), p.const(piece), numbers, p.const(CALL), None, None)
    expected = y.copy()
    part(expected, y_slot, dims, 0)[...] = sum(part(x, x_slot, dims, me).astype(np.float64) for x in xs).astype(y.dtype)
    assert (p.machine.memory.segments[RESULT].view(y.dtype).reshape(out) == expected).all() and not p.gone


@pytest.mark.parametrize("dtype, count", [("bfloat16", 333), ("float32", 7), ("int32", 130)])
def test_messages_of_rows(dtype, count):
    """The second of three rows goes to everybody, whose sums have one term more; a rank whose flags are old is named."""
    xs, more = [ints((3, count), dtype, r, -9, 10) for r in range(SIZE)], ints((3, count), dtype, 8, -9, 10)
    me, p, row, rows = 2, Polls(), 1, 3
    groups, i64 = -(-count * xs[0].itemsize // 8), p.i64
    inboxes(p, -(-rows * groups // 2), me)
    kind, layout = TensorType("T", dtype, COMMUNICATOR), ((0, 0, 0), xs[0].strides[0])
    pieces = range(-(-count * xs[0].itemsize // 256) + 1)
    tail = types.int32, types.int32
    _, send = lower("send_packets", kind, kind, types.int32, types.int32, types.int32, COUNTERS, *tail)
    argtypes = types.int32, types.int32, types.int32, COUNTERS, lit("sum"), *tail, kind
    _, combine = lower("reduce_packets", kind, kind, *argtypes)
    for rank, x in enumerate(xs):
        if rank == SIZE - 1:                     # before the last has sent: its flags are those of no call
            late = Polls()
            late.machine = p.machine
            tensor(p, INBOX, INBOXES + me * FAR, ((0, 0, 0), 0), me, TABLE)
            tensor(p, TARGET, RESULT, layout, me)
            p.machine.memory.put(RESULT, xs[0].tobytes())
            combine(late, p.const(TARGET, i64), p.const(INBOX, i64), p.const(0), p.const(count), p.const(CALL), None, None, p.const(row),
                    p.const(rows), p.const(TARGET, i64))
            assert late.gone[0] == (COUNTER + (1 << 8), rank)
        p.machine.memory.put(DATA, x.tobytes())
        tensor(p, SOURCE, DATA, layout, rank)
        tensor(p, INBOX, INBOXES + rank * FAR, ((0, 0, 0), 0), rank, TABLE)
        for piece in pieces:
            send(p, p.const(INBOX, i64), p.const(SOURCE, i64), p.const(piece), p.const(count), p.const(CALL), None, p.const(row),
                 p.const(rows))
    tensor(p, INBOX, INBOXES + me * FAR, ((0, 0, 0), 0), me, TABLE)
    p.machine.memory.put(DATA, more.tobytes())
    tensor(p, SOURCE, DATA, layout, me)
    p.machine.memory.put(RESULT, xs[0].tobytes())
    for piece in pieces:
        combine(p, p.const(TARGET, i64), p.const(INBOX, i64), p.const(piece), p.const(count), p.const(CALL), None, None, p.const(row),
                p.const(rows), p.const(SOURCE, i64))
    expected = xs[0].copy()
    expected[row] = (sum(x[row].astype(np.float64) for x in xs) + more[row].astype(np.float64)).astype(more.dtype)
    assert (p.machine.memory.segments[RESULT].view(more.dtype).reshape(3, count) == expected).all() and not p.gone
