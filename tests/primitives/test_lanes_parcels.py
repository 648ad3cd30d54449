"""Packets lane by lane: what is sent where with which flags, what is taken from which ranks; messages, rows and boxes of any layout."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.bounded import COUNTER
from pknumba.lowering.types import CountersType, TensorType
from pknumba.primitives.packets import PIECE, PIECE_BYTES
from pknumba.primitives.units import ALIGNED, STEP, STRIDES
from pknumba.templates.geometry import Box, Form, Rows, View, alignment

from . import machine
from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, lit
from .tiny import ints

SOURCE, INBOX, TARGET, MORE, TABLE, FAR = 0x1000, 0x1400, 0x1800, 0x1c00, 0x2000, 0x100_0000
DATA, INBOXES, RESULT, OTHER = FAR, 2 * FAR, 32 * FAR, 33 * FAR
BOX, SIZE, CALL = types.UniTuple(types.int32, 5), 6, 7
COUNTERS = CountersType("arrived", 1, COMMUNICATOR)
DTYPES = ("bfloat16", "float32", "int32")


class Polls(Lanes):
    """Lanes whose bounded wait looks once: everything must be there."""

    def __init__(self):
        super().__init__(2048)
        self.gone = []

    def shared_base(self):
        return self.const(1024)

    def spin(self, poll, base, *args, declare="", seen=0, after="", warp=False, soon=False):
        text = f"{{ .reg .pred p; {declare} {poll} selp.b32 $0, 1, 0, p; {after} }}"
        written = self.machine.run(text, [None] * (1 + seen) + [base, *args], self.active)
        return [written[i] for i in range(1 + seen)]

    def give_up(self, role, kind, which, expected, seen, base=None):
        lanes = np.flatnonzero(self.active)
        if lanes.size:
            self.gone.append((kind, int(np.broadcast_to(which, machine.LANES)[lanes[0]])))


#: A register of 128 bits.
PAIR = np.dtype([("low", "u8"), ("high", "u8")])


def _join(m, match, args, registers, mask):
    if isinstance(args[1], list):
        value = np.zeros(machine.LANES, PAIR)
        value["low"], value["high"] = (machine._value(registers, x).astype(np.uint64) for x in args[1])
        machine._set(registers, args[0], value, mask)
    else:
        for half, target in zip(("low", "high"), args[0]):
            machine._set(registers, target, np.broadcast_to(registers[args[1]], machine.LANES)[half], mask)


def _move(m, match, args, registers, mask):
    loads = match[1] == "ld"
    register, address = args[not loads], machine._address(registers, args[loads])
    values = np.zeros(machine.LANES, PAIR) if loads else np.broadcast_to(registers[register], machine.LANES)
    for lane in np.flatnonzero(mask):
        assert address[lane] % 16 == 0
        place = m.memory.at(int(address[lane]), 16)
        if loads:
            values[lane] = place.view(PAIR)[0]
        else:
            place[:] = values[lane:lane + 1].view(np.uint8)
    if loads:
        machine._set(registers, register, values, mask)


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
        elif args[1].isdigit():
            machine._set(registers, args[0], np.full(machine.LANES, int(args[1]), np.uint64), mask)
        else:
            value = np.broadcast_to(registers[args[1]], machine.LANES).astype(np.uint64)
            machine._set(registers, args[0][0], value.astype(np.uint32), mask)
            machine._set(registers, args[0][1], (value >> np.uint64(32)).astype(np.uint32), mask)
    table = [(r"mov\.b128", _join), (r"(ld|st)\.relaxed\.sys\.global\.b128", _move), (r"mov\.b64", pack),
             (r"setp\.eq(\.and)?\.u32", equal), (r"selp\.b32", select), (r"cvt\.u(?:16|32)\.u(?:16|32)", extend)]
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


def inboxes(p, units, rank, rows=1):
    """Empty inboxes of every rank for boxes of that many units, or rows of as many."""
    for r in range(SIZE):
        p.machine.memory.put(INBOXES + r * FAR, bytes(2 * SIZE * rows * -(-units // PIECE) * PIECE_BYTES))
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
    pieces, zero, one = range(-(-units // PIECE) + 1), p.const(0), p.const(1)
    _, send = lower("send_box", kind, kind, types.int32, BOX, types.int32, COUNTERS, *[types.int32] * 4)
    for rank, x in enumerate(xs):
        p.machine.memory.put(DATA, np.ascontiguousarray(x).tobytes())
        tensor(p, SOURCE, DATA, box.x, rank)
        tensor(p, INBOX, INBOXES + rank * FAR, ((0, 0, 0), 0), rank, TABLE)
        for piece in pieces if rank != me else ():
            send(p, p.const(INBOX, i64), p.const(SOURCE, i64), p.const(piece), numbers, p.const(CALL), None, p.const(me), p.const(me), zero,
                 one)
    assert not any(p.machine.memory.segments[INBOXES + r * FAR].any() for r in range(SIZE) if r != me), "sent to somebody else"
    tensor(p, INBOX, INBOXES + me * FAR, ((0, 0, 0), 0), me, TABLE)
    tensor(p, SOURCE, DATA, box.x, me)
    tensor(p, TARGET, RESULT, box.y, me)
    p.machine.memory.put(DATA, np.ascontiguousarray(xs[me]).tobytes())
    p.machine.memory.put(RESULT, np.ascontiguousarray(y).tobytes())
    three = [p.const(at, i64) for at in (TARGET, INBOX, SOURCE)]
    for piece in pieces:
        _, take = lower("take_boxes", kind, kind, kind, types.int32, BOX, types.int32, COUNTERS, types.int32)
        take(p, *three, p.const(piece), numbers, p.const(CALL), None, p.const(me))
    expected = y.copy()
    for r, x in enumerate(xs):
        part(expected, y_slot, dims, r)[...] = part(x, x_slot, dims, me)
    assert (p.machine.memory.segments[RESULT].view(y.dtype).reshape(out) == expected).all() and not p.gone
    p.machine.memory.put(RESULT, np.ascontiguousarray(y).tobytes())
    for piece in pieces:
        _, combine = lower("reduce_boxes", kind, kind, kind, types.int32, BOX, types.int32, COUNTERS, lit("sum"), *[types.int32] * 3,
                           types.none)
        combine(p, *three, p.const(piece), numbers, p.const(CALL), None, None, p.const(me), zero, one, None)
    expected = y.copy()
    part(expected, y_slot, dims, 0)[...] = sum(part(x, x_slot, dims, me).astype(np.float64) for x in xs).astype(y.dtype)
    assert (p.machine.memory.segments[RESULT].view(y.dtype).reshape(out) == expected).all() and not p.gone


@pytest.mark.parametrize("dtype, count", [("bfloat16", 1000), ("float32", 7), ("int32", 830)])
def test_messages_of_rows(dtype, count):
    """The second of three rows goes to everybody else, whose sums have one term more; a rank whose flags are old is named."""
    xs, more = [ints((3, count), dtype, r, -9, 10) for r in range(SIZE)], ints((3, count), dtype, 8, -9, 10)
    me, p, row, rows = 2, Polls(), 1, 3
    box, i64 = Rows((3, count), dtype), p.i64
    numbers, layout = [p.const(n) for n in box.numbers], box.layout(xs[0].strides)
    inboxes(p, box.numbers[-1], me, rows)
    kind, number = TensorType("T", dtype, COMMUNICATOR), types.int32
    pieces, where = range(-(-box.numbers[-1] // PIECE) + 1), (p.const(row), p.const(row), p.const(rows))
    _, send = lower("send_box", kind, kind, number, BOX, number, COUNTERS, number, types.none, number, number)
    _, combine = lower("reduce_boxes", kind, kind, kind, number, BOX, number, COUNTERS, lit("sum"), number, number, number, kind)

    def receive(lanes, piece):
        tensor(p, INBOX, INBOXES + me * FAR, ((0, 0, 0), 0), me, TABLE)
        tensor(p, TARGET, RESULT, layout, me)
        for at, place, x in ((SOURCE, DATA, xs[me]), (MORE, OTHER, more)):
            tensor(p, at, place, layout, me)
            p.machine.memory.put(place, x.tobytes())
        combine(lanes, *(p.const(at, i64) for at in (TARGET, INBOX, SOURCE)), p.const(piece), numbers, p.const(CALL), None, None, *where,
                p.const(MORE, i64))

    for rank, x in enumerate(xs):
        if rank == SIZE - 1:                     # before the last has sent: its flags are those of no call
            late = Polls()
            late.machine = p.machine
            p.machine.memory.put(RESULT, xs[0].tobytes())
            receive(late, 0)
            assert late.gone[0] == (COUNTER + (1 << 8), rank)
        p.machine.memory.put(DATA, x.tobytes())
        tensor(p, SOURCE, DATA, layout, rank)
        tensor(p, INBOX, INBOXES + rank * FAR, ((0, 0, 0), 0), rank, TABLE)
        for piece in pieces:
            send(p, p.const(INBOX, i64), p.const(SOURCE, i64), p.const(piece), numbers, p.const(CALL), None, p.const(row), None, *where[1:])
    p.machine.memory.put(RESULT, xs[0].tobytes())
    for piece in pieces:
        receive(p, piece)
    expected = xs[0].copy()
    expected[row] = (sum(x[row].astype(np.float64) for x in xs) + more[row].astype(np.float64)).astype(more.dtype)
    assert (p.machine.memory.segments[RESULT].view(more.dtype).reshape(3, count) == expected).all() and not p.gone
