"""Addresses beyond 4 GiB lane by lane: rows, slots and pieces that lie so far that 32 bits do not count the bytes to them."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import TensorType
from pknumba.primitives.units import ALIGNED, STEP, STRIDES, UNIT
from pknumba.templates.geometry import View, alignment

from . import machine
from .lanes import Lanes, lower
from .layouts import COMMUNICATOR, lit
from .tiny import ints

GIB = 1 << 30
SOURCE, TARGET, TABLE = 0x1000, 0x1400, 0x2000
BASES = {SOURCE: 0x10_0000, TARGET: 1 << 40}
PAIR = types.UniTuple(types.int32, 5)


@pytest.fixture(autouse=True)
def conversions(monkeypatch):
    """The machine learns the moves between 16- and 32-bit registers."""
    def extend(m, match, args, registers, mask):
        machine._set(registers, args[0], machine.bits(machine._value(registers, args[1])) & np.uint32(0xffff), mask)
    monkeypatch.setattr(machine, "_TABLE", [*machine._TABLE, (r"cvt\.u(?:16|32)\.u(?:16|32)", extend)])


class Far:
    """Two tensors of one rank of two, of which only a few bytes exist, at ``places`` from their start."""

    def __init__(self, strides=(0, 0, 0), step=0):
        self.p = Lanes()
        for at, base in BASES.items():
            raw, view = bytearray(384), View(base, strides=strides, step=step)
            struct.pack_into("<QQQIIIIQ", raw, 0, base, TABLE, 0, 0, 0, 2, 0, 0)
            for place, s in zip(STRIDES, strides):
                struct.pack_into("<q", raw, place, s)
            struct.pack_into("<q", raw, STEP, step)
            struct.pack_into("<I", raw, ALIGNED, alignment(view))
            self.p.machine.memory.put(at, bytes(raw))
        self.p.machine.memory.put(TABLE, struct.pack("<2Q", BASES[SOURCE], BASES[SOURCE]))

    def put(self, at, place, values):
        self.p.machine.memory.put(BASES[at] + place, np.ascontiguousarray(values).tobytes())

    def get(self, at, place, dtype):
        return self.p.machine.memory.segments[BASES[at] + place].view(dtype)

    def at(self, tensor):
        return self.p.const(tensor, self.p.i64)


def run(m, name, dtype, box, piece, slot, unroll=1):
    """copy_box, or reduce_box over the two ranks, which have the same memory here."""
    tensor, p = TensorType("T", dtype, COMMUNICATOR), m.p
    numbers = [p.const(n) for n in box]
    if name == "copy_box":
        _, emit = lower(name, tensor, tensor, types.int32, PAIR, lit(unroll), types.int32, types.int32, lit(None), lit(None),
                        lit(False))
        emit(p, m.at(TARGET), m.at(SOURCE), p.const(piece), numbers, None, p.const(slot), p.const(slot), None, None, None)
        return
    _, emit = lower(name, tensor, tensor, types.int32, PAIR, lit(unroll), lit("sum"), types.int32, types.int32, lit(False), lit(False),
                    lit(None), lit(False), lit(4))
    emit(p, m.at(TARGET), m.at(SOURCE), p.const(piece), numbers, None, None, p.const(slot), p.const(slot), *[None] * 5)


@pytest.mark.parametrize("name, times", [("copy_box", 1), ("reduce_box", 2)])
@pytest.mark.parametrize("dtype, last", [("bfloat16", 8), ("float32", 3)])
def test_rows_and_slots(name, times, dtype, last):
    """Three rows that are 5 GiB apart, in the third of slots that are 17 GiB apart; whole units and single elements."""
    m, row, step = Far((0, 0, 5 * GIB), 17 * GIB), 2 * 17 * GIB, 17 * GIB
    width = UNIT // np.dtype(ints((1,), dtype, 0).dtype).itemsize
    rows = [ints((width + last,), dtype, i, -9, 10) for i in range(3)]
    for i, values in enumerate(rows):
        m.put(SOURCE, row + i * 5 * GIB, values)
        m.put(TARGET, row + i * 5 * GIB, np.full_like(values, 99))
    run(m, name, dtype, (1, 3, 2, last, 6), 0, 2)
    assert step > 1 << 32
    for i, values in enumerate(rows):
        assert (m.get(TARGET, row + i * 5 * GIB, values.dtype) == values * values.dtype.type(times)).all()


@pytest.mark.parametrize("name, times", [("copy_box", 1), ("reduce_box", 2)])
@pytest.mark.parametrize("units", [2**28 + 5, 2**31 - 1])
def test_pieces(name, times, units):
    """The last piece of one row of more than 4 GiB, up to the largest that a call takes (32 GiB)."""
    m, piece = Far(), (units - 1) // 32
    first = 32 * piece
    values = ints(((units - first) * 8 - 3,), "bfloat16", 1, -9, 10)
    m.put(SOURCE, first * UNIT, values)
    m.put(TARGET, first * UNIT, np.full_like(values, 99))
    run(m, name, "bfloat16", (1, 1, units, 5, units), piece, 0)
    assert (m.get(TARGET, first * UNIT, values.dtype) == values * values.dtype.type(times)).all()


def test_packets():
    """The largest message has an inbox of more than 4 GiB, and a piece there a number of more than 32 bits."""
    from pknumba.primitives.packets import PIECE_BYTES, packet_place
    p, pieces = Lanes(), 2**31 // 96
    at = packet_place(p, p.const(3), p.const(8), p.const(5), p.const(pieces), p.const(pieces - 1), p.const(2), p.const(3 << 20))
    assert (at == PIECE_BYTES * (((8 + 5) * (3 << 20) + 2) * pieces + pieces - 1) + 16 * (np.arange(at.size) % 32)).all()
    assert at.dtype == np.uint64


def test_windows_of_a_matrix():
    """Rows of a matrix of more than 4 GiB: what GEMM's communicators read and write."""
    p = Lanes()
    pitch, rows, cols, first = 1 << 16, 1 << 20, 1 << 15, (1 << 20) - 8
    base, values = 1 << 40, ints((8, 16), "bfloat16", 1, -9, 10)
    p.machine.memory.put(SOURCE, struct.pack("<QQQIIIIQ", base, TABLE, pitch, rows, cols, 2, 0, 0))
    p.machine.memory.put(TABLE, struct.pack("<2Q", base, base))
    for i in range(8):
        p.machine.memory.put(base + (first + i) * pitch, np.ascontiguousarray(values[i]).tobytes())
    tensor = TensorType("C", "bfloat16", COMMUNICATOR)
    _, emit = lower("all_reduce", tensor, types.UniTuple(types.int32, 2), types.Tuple([lit(8), lit(16)]), lit("sum"), lit(False))
    emit(p, p.const(SOURCE, p.i64), [p.const(first // 8), p.const(0)], None, None, None)
    for i in range(8):
        found = p.machine.memory.segments[base + (first + i) * pitch].view(values.dtype)
        assert (found == values[i] * values.dtype.type(2)).all()
