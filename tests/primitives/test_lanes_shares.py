"""Shares of register tiles, lane by lane: what one worker leaves the same thread of another finds, and what is found is empty again."""

import struct

import numpy as np
import pytest

from pknumba.errors import ContractError
from pknumba.lowering.types import AccumulatorType, CountersType, TensorType
from pknumba.primitives.shares import EMPTY

from . import machine
from .lanes import lower
from .layouts import CONSUMER, fragments, lit, matrix, values
from .test_lanes_parcels import Polls, words  # noqa: F401 - words: a fixture

TENSOR, DATA = 0x1000, 0x10_0000
SUMS, LEFT = TensorType("sums", "float32", CONSUMER), CountersType("left", 0, CONSUMER)


@pytest.fixture(autouse=True)
def extremes(words, monkeypatch):  # noqa: F811
    """The machine learns to compare words."""
    table = [(r"min\.u32", machine._binary(np.minimum, machine.bits)), (r"max\.u32", machine._binary(np.maximum, machine.bits))]
    monkeypatch.setattr(machine, "_TABLE", table + machine._TABLE)


class Blocks:
    """Workers of one tile, on one machine: their memory, full of what is empty, and what they do."""

    def __init__(self, rows, cols, shares, count, step):
        self.acc, self.p, self.size = AccumulatorType(rows, cols), Polls(), rows * cols
        memory = self.p.machine.memory
        memory.put(DATA, np.full((1 + count * step) * self.size, EMPTY, np.uint32).tobytes())
        memory.put(TENSOR, struct.pack("<QQQIIIIQ", DATA, 0, 4 * cols, (1 + count * step) * rows, cols, 1, 0, 0))
        self.words, self.at = memory.segments[DATA].view(np.uint32).reshape(-1, self.size), self.p.const(TENSOR, self.p.i64)
        _, self._leave = lower("store_shares", SUMS, None, self.acc, lit(shares), None, LEFT)
        self.result, self._add = lower("reduce_shares", self.acc, SUMS, None, lit(step), lit(count), lit(shares), None, LEFT)

    def leave(self, number, tile, own):
        self._leave(self.p, self.at, self.p.const(number), fragments(tile), None, self.p.const(own), None)

    def add(self, tile, step, own):
        p = self.p
        found = self._add(p, fragments(tile), self.at, p.const(1), p.const(step), None, None, p.const(own), None)
        return matrix(found, self.acc.rows, self.result.cols)


@pytest.mark.parametrize("rows, cols, shares, count, step", [(64, 64, 4, 4, 1), (64, 128, 8, 16, 2), (128, 48, 2, 2, 1), (64, 64, 1, 2, 1),
                                                            (64, 32, 4, 32, 1)])
def test_left_and_added(rows, cols, shares, count, step):
    tiles = [values((rows, cols), seed=i) * np.float32(1 + i % 3) for i in range(count)]
    blocks, width = Blocks(rows, cols, shares, count, step), cols // shares
    for i, tile in enumerate(tiles):
        blocks.leave(1 + i * step, tile, i)
        assert (blocks.words[1 + i * step] == EMPTY).sum() == (rows * width if i < shares else 0), "its own share stays with the worker"
    assert (blocks.words[0] == EMPTY).all() and (blocks.result.rows, blocks.result.cols) == (rows, width)
    for own in range(shares):
        want = sum(tile[:, own * width:(own + 1) * width] for tile in tiles)
        assert (blocks.add(tiles[own], step, own) == want).all()
    assert (blocks.words == EMPTY).all() and not blocks.p.gone, "empty for the next call"


def test_who_is_waited_for():
    """A tile that nobody has left: the record names its slot. A result that looks empty is another NaN."""
    blocks, tile = Blocks(64, 64, 2, 2, 1), values((64, 64))
    blocks.leave(1, tile, 0)
    blocks.add(tile, 1, 0)
    assert blocks.p.gone and blocks.p.gone[0][1] == 2
    nan = np.full((64, 64), EMPTY, np.uint32).view(np.float32)
    blocks = Blocks(64, 64, 2, 2, 1)
    blocks.leave(2, nan, 1)
    assert (blocks.words[2] == EMPTY).sum() == 64 * 32 and np.isnan(blocks.add(tile, 1, 0)).all() and not blocks.p.gone


def test_refused():
    tensor, acc = TensorType("C", "bfloat16", CONSUMER), AccumulatorType(64, 64)
    with pytest.raises(ContractError, match="memory of float32"):
        lower("store_shares", tensor, None, acc, lit(2), None, LEFT)
    with pytest.raises(ContractError, match="multiple of 8 columns"):
        lower("reduce_shares", acc, SUMS, None, lit(1), lit(2), lit(16), None, LEFT)
    with pytest.raises(ContractError, match="power of two"):
        lower("reduce_shares", acc, SUMS, None, lit(1), lit(3), lit(2), None, LEFT)
