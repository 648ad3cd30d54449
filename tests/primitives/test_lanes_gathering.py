"""Gathering lane by lane: two warps leave in shared memory what the copy engine would have of those rows."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.errors import ContractError
from pknumba.lowering.types import TensorType, TileType
from pknumba.tiles import Role

from . import machine
from .lanes import Builder, Lanes, lower
from .layouts import shared_bytes, values
from .machine import LANES, bits

GATHERER, INT, TILE_AT = Role("gatherer", "warp", 2, beside=True), types.int32, 1024
TABLE_AT, MATRIX_AT = 0x4000, 0x10_0000


@pytest.fixture(autouse=True)
def instructions(monkeypatch):
    """The machine learns to shuffle from any lane, to copy into shared memory, and arithmetic of addresses."""
    def shuffle(m, match, args, registers, mask):
        assert mask.all() or not mask.any(), "a shuffle of all lanes in a branch of some"
        lane = machine.WARP + (bits(machine._value(registers, args[2])) & 31)
        machine._set(registers, args[0], machine._value(registers, args[1])[lane], mask)

    def mad_wide(m, match, args, registers, mask):
        a, b = (bits(machine._value(registers, x)).astype(np.uint64) for x in args[1:3])
        with np.errstate(over="ignore"):
            machine._set(registers, args[0], a * b + machine._value(registers, args[3]).astype(np.uint64), mask)

    def below(m, match, args, registers, mask):
        x, y = (bits(machine._value(registers, a)).view(np.int32) for a in args[1:])
        machine._set(registers, args[0], x < y, mask)

    def select(m, match, args, registers, mask):
        a, b, p = (machine._value(registers, x) for x in args[1:])
        machine._set(registers, args[0], np.where(p.astype(bool), bits(a), bits(b)), mask)

    def field(m, match, args, registers, mask):
        first, n = (int(x) for x in args[2:])
        machine._set(registers, args[0], bits(machine._value(registers, args[1])) >> first & (1 << n) - 1, mask)

    def copy(m, match, args, registers, mask):
        """Of a predicate: nothing is read where it holds; of a number: so many bytes are, the others are zero."""
        to, source, last = machine._address(registers, args[0]), machine._address(registers, args[1]), machine._value(registers, args[3])
        left = np.where(last, 0, 16) if last.dtype == bool else bits(last)
        assert args[2] == "16" and not to[mask].astype(int).__mod__(16).any()
        for lane in m.lanes(mask):
            n = int(left[lane])
            m.shared[int(to[lane]):int(to[lane]) + 16] = 0
            if n:
                assert source[lane] % 16 == 0 and n <= 16
                m.shared[int(to[lane]):int(to[lane]) + n] = m.memory.at(int(source[lane]), n)

    new = [(r"shfl\.sync\.idx\.b32", shuffle), (r"mad\.wide\.u32", mad_wide), (r"setp\.lt\.s32", below), (r"selp\.b32", select),
           (r"bfe\.u32", field), (r"cp\.async\.cg\.shared\.global", copy)]
    monkeypatch.setattr(Builder, "trunc", lambda self, x, ty: x.astype(np.uint32), raising=False)
    monkeypatch.setattr(machine, "_TABLE", [*new, *machine._TABLE])


def gathered(shape, matrix, table, first, end, each, col):
    """The tile's bytes after ``sources`` and ``gather_async`` by two warps."""
    p = Lanes(TILE_AT + 2 * int(np.prod(shape)))
    p.machine.shared[:] = 0xee
    pitch = -(-matrix.shape[1] * 2 // 16) * 16 + 16
    rows = np.full((len(matrix), pitch), 0xff, np.uint8)                # what lies beside a row is no number
    rows[:, :matrix.shape[1] * 2] = np.ascontiguousarray(matrix).view(np.uint8)
    p.machine.memory.put(MATRIX_AT, rows.tobytes()), p.machine.memory.put(TABLE_AT, table.astype(np.int32).tobytes())
    for place, base, width, cols in ((0x1000, TABLE_AT, 4 * len(table), len(table)), (0x2000, MATRIX_AT, pitch, matrix.shape[1])):
        p.machine.memory.put(place, struct.pack("<QQQIIIIQ", base, 0, width, len(rows), cols, 1, 0, 0).ljust(384, b"\0"))
    tile = TileType("a", shape, matrix.dtype.name, 128, GATHERER)
    header = {name: (TensorType(name, dtype, GATHERER), p.const(at, p.i64)) for name, dtype, at in
              (("source", "int32", 0x1000), ("A", matrix.dtype.name, 0x2000))}
    result, emit = lower("sources", tile, header["source"][0], INT, INT, INT)
    found = emit(p, p.const(TILE_AT), header["source"][1], p.const(first), p.const(end), p.const(each))
    assert len(result) == len(found) == np.prod(shape[:-1]) // 64
    _, emit = lower("gather_async", tile, header["A"][0], result, INT)
    emit(p, p.const(TILE_AT), header["A"][1], found, p.const(col))
    return p.machine.shared[TILE_AT:]


@pytest.mark.parametrize("each", [1, 2, 3, 8, 127])
@pytest.mark.parametrize("shape", [(1, 64, 64), (2, 64, 64), (1, 128, 64), (3, 64, 64), (2, 128, 64), (2, 64, 128)])
def test_gather(shape, each):
    """Whole tiles, tiles cut by the group's end or the last column, in the middle of a piece too; every way to divide a tile."""
    lead, part, depth = shape
    rows, rng = lead * part, np.random.default_rng(each)
    for cols, col, first, count in ((depth, 0, 0, rows), (3 * depth, 1, 5, rows - 1), (2 * depth + 40, 2, 3, rows // 2 + 3),
                                    (depth + 13, 1, 0, 1), (2 * depth + 1, 2, 9, rows), (depth - 1, 0, 2, 0)):
        matrix, table = values((50, cols), "bfloat16", each), rng.integers(0, 50 * each, first + rows + 7)
        wanted, window = np.zeros((rows, depth), matrix.dtype), matrix[:, col * depth:(col + 1) * depth]
        wanted[:count, :window.shape[1]] = window[table[first:first + count] // each]
        expected = np.concatenate([shared_bytes(x, 128) for x in wanted.reshape(shape)])
        assert (gathered(shape, matrix, table, first, first + count, each, col) == expected).all(), (cols, col, count)


def test_quotients():
    """Of every size of number, by every kind of divisor."""
    from pknumba.primitives.gathering import _quotients
    p, rng = Lanes(), np.random.default_rng(0)
    Builder.trunc = lambda self, x, ty: x.astype(np.uint32)
    for divisor in (1, 2, 3, 5, 7, 8, 10, 64, 1000, 65537, 2**30, 2**31 - 1):
        numbers = np.concatenate([[0, 1, 2**31 - 1, 2**31 - 2], rng.integers(0, 2**31, 60),
                                  np.clip(rng.integers(0, 2**31 // divisor + 1, 64) * divisor - rng.integers(0, 2, 64), 0, 2**31 - 1)])
        found, = _quotients(p, [numbers.astype(np.uint32)], p.const(divisor))
        assert (found == numbers // divisor).all()


def test_what_cannot_be():
    """Another number of warps, of rows, another swizzle or dtype."""
    def tile(shape=(1, 64, 64), swizzle=128, role=GATHERER, dtype="bfloat16"):
        return TileType("a", shape, dtype, swizzle, role)
    table, matrix, rows = TensorType("t", "int32", GATHERER), TensorType("A", "bfloat16", GATHERER), types.UniTuple(INT, 1)
    for bad, words in ((tile(role=Role("communicator", "warp", 8)), "by 8 workers"), (tile(swizzle=64), "swizzle of 64"),
                       (tile((1, 32, 64)), "32 rows")):
        for name, given in (("sources", (bad, table, INT, INT, INT)), ("gather_async", (bad, matrix, rows, INT))):
            with pytest.raises(ContractError, match=words):
                lower(name, *given)
    for bad in (tile(dtype="float16"), tile((2, 64, 64))):
        with pytest.raises(ContractError, match="copied as they are"):
            lower("gather_async", bad, matrix, rows, INT)
    assert LANES == 128
