"""Shares of register tiles, lane by lane: what one worker leaves the same thread of another finds, call after call in the same memory."""

import struct

import numpy as np
import pytest

from pknumba.errors import ContractError
from pknumba.lowering.types import AccumulatorType, CountersType, TensorType

from . import machine
from .lanes import lower
from .layouts import CONSUMER, fragments, lit, matrix, values
from .test_lanes_parcels import Polls, words  # noqa: F401 - words: a fixture

TENSOR, DATA = 0x1000, 0x10_0000
SUMS, LEFT = TensorType("sums", "float32", CONSUMER), CountersType("left", 0, CONSUMER)


@pytest.fixture(autouse=True)
def logic(words, monkeypatch):  # noqa: F811
    """The machine learns to add and logic: lop3's last operand is its table, bit 4 a + 2 b + c of which is the result for bits a, b, c."""
    def lop3(m, match, args, registers, mask):
        a, b, c = (machine.bits(machine._value(registers, x)) for x in args[1:4])
        terms = [(a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c) for i in range(8) if int(args[4], 16) >> i & 1]
        machine._set(registers, args[0], np.bitwise_or.reduce(terms), mask)
    table = [(r"lop3\.b32", lop3), (r"and\.b32", machine._binary(np.bitwise_and, machine.bits)),
             (r"add\.f32", machine._binary(np.add, machine.floats))]
    monkeypatch.setattr(machine, "_TABLE", table + machine._TABLE)


class Blocks:
    """Workers of one tile, on one machine: their memory, as it is before the first call, and what they do."""

    def __init__(self, rows, cols, shares, count, step):
        self.acc, self.p, self.size = AccumulatorType(rows, cols), Polls(), rows * cols
        memory = self.p.machine.memory
        memory.put(DATA, bytes(4 * (1 + count * step) * self.size))
        memory.put(TENSOR, struct.pack("<QQQIIIIQ", DATA, 0, 4 * cols, (1 + count * step) * rows, cols, 1, 0, 0))
        self.words, self.at = memory.segments[DATA].view(np.uint32).reshape(-1, self.size), self.p.const(TENSOR, self.p.i64)
        _, self._phase = lower("shares_phase", SUMS, None, lit(rows), lit(cols), lit(shares), None, LEFT)
        _, self._leave = lower("store_shares", SUMS, None, self.acc, lit(shares), None, None, LEFT)
        self.result, self._add = lower("reduce_shares", self.acc, SUMS, None, lit(step), lit(count), lit(shares), None, None, LEFT)

    def phase(self, number, own):
        return self._phase(self.p, self.at, self.p.const(number), None, None, None, self.p.const(own), None)

    def leave(self, number, tile, own, phase):
        self._leave(self.p, self.at, self.p.const(number), fragments(tile), None, self.p.const(own), phase, None)

    def add(self, tile, step, own, phase):
        p = self.p
        found = self._add(p, fragments(tile), self.at, p.const(1), p.const(step), None, None, p.const(own), phase, None)
        return matrix(found, self.acc.rows, self.result.cols)


@pytest.mark.parametrize("rows, cols, shares, count, step", [(64, 64, 4, 4, 1), (64, 128, 8, 16, 2), (128, 48, 2, 2, 1), (64, 64, 1, 2, 1),
                                                            (64, 32, 4, 32, 1)])
def test_left_and_added(rows, cols, shares, count, step):
    """Three calls: each finds the bit that the one before has left, and takes no word of it for its own."""
    blocks, width = Blocks(rows, cols, shares, count, step), cols // shares
    for call in (1, 2, 3):
        tiles = [values((rows, cols), seed=i + call) * np.float32(1 + i % 3) for i in range(count)]
        phases = [blocks.phase(1 + i * step, i) for i in range(count)]
        assert all((phase == call % 2).all() for phase in phases)
        for i, tile in enumerate(tiles):
            blocks.leave(1 + i * step, tile, i, phases[i])
            kept = rows * width - 64 * 8 if i < shares else 0
            assert (blocks.words[1 + i * step] & 1 == call % 2).sum() == (rows * cols - kept if call % 2 else rows * cols), \
                "its own share stays with the worker, but for the block by which it will know the next call"
        for own in range(shares):
            want = sum(tile[:, own * width:(own + 1) * width] for tile in tiles)
            assert (blocks.add(tiles[own], step, own, phases[own]) == want).all()
    assert (blocks.words[0] == 0).all() and (blocks.result.rows, blocks.result.cols) == (rows, width) and not blocks.p.gone


def test_who_is_waited_for():
    """A tile that nobody has left in this call, though in the last: the record names its slot."""
    blocks, tile = Blocks(64, 64, 2, 2, 1), values((64, 64))
    for i in range(2):
        blocks.leave(1 + i, tile, i, blocks.phase(1 + i, i))
    blocks.add(tile, 1, 0, blocks.p.const(1))
    assert not blocks.p.gone
    phase = blocks.phase(1, 0)
    blocks.leave(1, tile, 0, phase)
    blocks.add(tile, 1, 0, phase)
    assert blocks.p.gone and blocks.p.gone[0][1] == 2


@pytest.mark.parametrize("phase", [0, 1])
def test_any_word_can_be_left(phase):
    """Of every float the lowest bit is lost, and nothing else: NaN and infinity stay what they are."""
    bits = np.random.default_rng(phase).integers(0, 1 << 32, (64, 64), dtype=np.uint32)
    bits[0, :4] = 0x7fffffff, 0xffffffff, 0x7f800000, 0x7f800002
    blocks, zero, own = Blocks(64, 64, 2, 2, 1), np.zeros((64, 64), np.float32), 0
    blocks.leave(2, bits.view(np.float32), 1, blocks.p.const(phase))
    there = blocks.words[2].copy()
    assert (there & 1 == phase).sum() >= 64 * 40
    with np.errstate(invalid="ignore"):
        found = blocks.add(zero, 1, own, blocks.p.const(phase))
        want = (bits & 0xfffffffe).view(np.float32)[:, :32] + np.float32(0)
    assert np.array_equal(found, want, equal_nan=True) and np.isnan(found[0, :2]).all() and np.isinf(found[0, 2])


def test_refused():
    tensor, acc = TensorType("C", "bfloat16", CONSUMER), AccumulatorType(64, 64)
    with pytest.raises(ContractError, match="memory of float32"):
        lower("store_shares", tensor, None, acc, lit(2), None, None, LEFT)
    with pytest.raises(ContractError, match="multiple of 8 columns"):
        lower("reduce_shares", acc, SUMS, None, lit(1), lit(2), lit(16), None, None, LEFT)
    with pytest.raises(ContractError, match="power of two"):
        lower("reduce_shares", acc, SUMS, None, lit(1), lit(3), lit(2), None, None, LEFT)
