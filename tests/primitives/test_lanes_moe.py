"""Routing and carrying lane by lane: what the lowerings leave in every rank's memory is what their bodies say."""

import struct

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import AccumulatorType, CountersType, TensorType
from pknumba.primitives.activation import FUNCTIONS

from . import machine
from .lanes import Builder, Lanes, lower
from .layouts import COMMUNICATOR, lit
from .machine import LANES, bits, floats
from .tiny import dtype_of, ints

INT, PEERS, DATA, FAR = types.int32, 0x8000, 0x10_0000, 0x10_0000


@pytest.fixture(autouse=True)
def instructions(monkeypatch):
    """The machine learns votes, counts, signals and the functions of activations."""
    value = machine._value

    def with_masks(registers, word):
        if word == "%lanemask_lt":
            return ((np.uint64(1) << (np.arange(LANES, dtype=np.uint64) % 32)) - 1).astype(np.uint32)
        return np.full(LANES, int(word, 16), np.uint32) if word.startswith("0x") else value(registers, word)

    def ballot(m, match, args, registers, mask):
        assert mask.all(), "a vote of all lanes in a branch"
        said = machine._value(registers, args[1]).astype(bool).reshape(-1, 32)
        votes = (said << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)
        machine._set(registers, args[0], np.repeat(votes, 32), mask)

    def popc(m, match, args, registers, mask):
        counts = [bin(int(x)).count("1") for x in bits(machine._value(registers, args[1]))]
        machine._set(registers, args[0], np.array(counts, np.uint32), mask)

    def fma(m, match, args, registers, mask):
        a, b, c = (floats(machine._value(registers, x)) for x in args[1:])
        machine._set(registers, args[0], (a.astype(np.float64) * b + c).astype(np.float32), mask)

    def red(m, match, args, registers, mask):
        at, n = machine._address(registers, args[0]), bits(machine._value(registers, args[1]))
        for lane in m.lanes(mask):
            m.memory.at(int(at[lane]), 4).view(np.uint32)[0] += n[lane]

    def from_lane(m, match, args, registers, mask):
        lane = machine.WARP + (bits(machine._value(registers, args[2])) & 31)
        machine._set(registers, args[0], machine._value(registers, args[1])[lane], mask)

    relaxed = machine._SPACE.replace(r"(?:\.relaxed\.sys)?", "")
    new = [(r"shfl\.sync\.idx\.b32", from_lane), (r"vote\.sync\.ballot\.b32", ballot), (r"popc\.b32", popc),
           (r"fma\.rn\.f32", fma), (r"red\.relaxed\.sys\.global\.add\.u32", red), (r"mul\.f32", machine._binary(np.multiply, floats)),
           (r"add\.f32", machine._binary(np.add, floats)), (r"tanh\.approx\.f32", machine._binary(np.tanh, floats)),
           (r"(?:fence|bar)\..*", lambda *_: None), (r"ld\.relaxed\.gpu" + relaxed, machine._load)]
    monkeypatch.setattr(Builder, "if_then", lambda self, condition, likely=None: self.lanes.when(condition), raising=False)
    monkeypatch.setattr(machine, "_value", with_masks)
    monkeypatch.setattr(machine, "_TABLE", [*machine._TABLE, *new])


class Memory:
    """Tensors of two ranks in the machine's memory; this is rank 0. Rows lie ``pitch`` bytes apart, all else is 0xee."""

    def __init__(self, **arrays):
        self.p, self.places, self.types = Lanes(), {}, {}
        for i, (name, pair) in enumerate(arrays.items()):
            table, header, bases = PEERS + 64 * i, 0x1000 + 0x400 * i, []
            for r, x in enumerate(pair):
                base = DATA + FAR * (2 * i + r)
                width = x.shape[-1] * x.itemsize
                pitch = -(-width // 16) * 16 if x.ndim > 1 else width
                raw = np.full((x.shape[0] if x.ndim > 1 else 1, pitch + 32), 0xee, np.uint8)
                raw = np.full((len(raw) * pitch + 64,), 0xee, np.uint8)
                for row, values in enumerate(x if x.ndim > 1 else [x]):
                    raw[row * pitch:row * pitch + width] = np.ascontiguousarray(values).view(np.uint8)
                self.p.machine.memory.put(base, raw.tobytes())
                bases.append(base)
                self.places[name, r] = base, pitch, x
            x = pair[0]
            self.p.machine.memory.put(table, struct.pack("<2Q", *bases))
            head = struct.pack("<QQQIIIIQ", bases[0], table, pitch, x.shape[0] if x.ndim > 1 else 1, x.shape[-1], 2, 0, 0)
            self.p.machine.memory.put(header, head.ljust(384, b"\0"))
            self.types[name] = TensorType(name, x.dtype.name, COMMUNICATOR), self.p.const(header, self.p.i64)

    def call(self, primitive, *arguments):
        """Run a lowering: names of tensors, numbers, None."""
        kinds, values = [], []
        for x in arguments:
            known = isinstance(x, str) and x in self.types
            kinds.append(self.types[x][0] if known else lit(x) if x is None or isinstance(x, bool) else INT)
            values.append(self.types[x][1] if known else x if x is None or isinstance(x, bool) else self.p.const(x))
        return lower(primitive, *kinds)[1](self.p, *values)

    def add_up(self, table, numbers, count):
        """Several sums."""
        _, emit = lower("add_up", self.types[table][0], types.UniTuple(INT, len(numbers)), INT)
        return emit(self.p, self.types[table][1], [self.p.const(n) for n in numbers], self.p.const(count))

    def found(self, name, rank=0):
        """The array now; what lies beyond its last row was not written."""
        base, pitch, x = self.places[name, rank]
        raw, rows = self.p.machine.memory.segments[base], x.shape[0] if x.ndim > 1 else 1
        assert (raw[rows * pitch:] == 0xee).all(), f"written beside {name}"
        width = x.shape[-1] * x.itemsize
        return np.stack([raw[r * pitch:r * pitch + width] for r in range(rows)]).view(x.dtype).reshape(x.shape)


def table(count, experts=5, seed=0):
    return np.random.default_rng(seed).integers(-2, experts + 2, count).astype(np.int32)


@pytest.mark.parametrize("first, count", [(0, 1), (0, 31), (3, 128), (0, 129), (17, 700), (5, 5), (0, 1025)])
def test_routing(first, count):
    """Counting, dealing with and without room for all, dropping, publishing, adding up."""
    indices, rows = table(count), 40
    there = np.arange(count) >= first
    blank = np.full(count, -99, np.int32), np.full(rows, -7, np.int32)
    m = Memory(indices=[indices] * 2, place=[blank[0]] * 2, source=[blank[1]] * 2, starts=[np.zeros(12, np.int32)] * 2)
    for bound in (0, 1, 3, 5):
        assert (bits(m.call("tally", "indices", first, count, bound)) == (there & (indices >= 0) & (indices < bound)).sum()).all()
    place, source = blank[0].copy(), blank[1].copy()
    for expert, row in ((0, 0), (3, 25), (4, 39), (1, 50)):
        m.call("deal", "indices", first, count, expert, row, rows, "place", 100 * expert, "source", 1, 1000)
        slots = np.flatnonzero(there & (indices == expert))
        for i, slot in enumerate(slots):
            place[slot] = row + i + 100 * expert if row + i < rows else -1
            if row + i < rows:
                source[row + i] = 1000 + slot
    m.call("drop", "indices", first, count, 5, "place")
    place[there & ((indices < 0) | (indices >= 5))] = -1
    assert (m.found("place") == place).all() and (m.found("source", 1) == source).all()
    assert (m.found("source", 0) == -7).all() and (m.found("place", 1) == -99).all()
    m.call("put", "starts", 3, 41, False), m.call("put", "starts", 7, 42, True)
    assert m.found("starts", 0)[[3, 7]].tolist() == [41, 42] and m.found("starts", 1)[[3, 7]].tolist() == [0, 42]
    assert (bits(m.call("look", "starts", 7)) == 42).all()
    for number, some in ((0, 12), (4, 4), (3, 0), (7, 1)):
        for first, total in zip((0, number), m.add_up("starts", (0, number), some)):
            assert (bits(total) == m.found("starts", 0)[first:first + some].sum()).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("cols", [1, 7, 8, 264, 3000])
def test_carry(cols, dtype):
    x, y = ints((5, cols), dtype, 1, -99, 100), ints((6, cols), dtype, 2)
    m = Memory(to=[y, y], source=[x, x + x.dtype.type(1)])
    m.call("carry", "to", 4, "source", 2, None, 1)
    m.call("carry", "to", 5, "source", 3, 1, None)
    expected = [y.copy(), y.copy()]
    expected[0][4], expected[1][5] = x[2] + x.dtype.type(1), x[3]
    assert (m.found("to", 0) == expected[0]).all() and (m.found("to", 1) == expected[1]).all()


@pytest.mark.parametrize("cols, count", [(1, 1), (7, 3), (264, 8), (3000, 2), (16, 33), (8, 70)])
def test_spread(cols, count):
    """Each row goes to several places; to none where a place is -1."""
    x, y = ints((3, cols), "bfloat16", 1, -99, 100), ints((3 * count, cols), "bfloat16", 2)
    place = np.random.default_rng(count).permutation(3 * count).astype(np.int32)
    place[::5] = -1
    m = Memory(to=[y] * 2, source=[x] * 2, place=[place] * 2)
    for row in (0, 2):
        m.call("spread", "to", "source", row, "place", count)
        mine = place[row * count:(row + 1) * count]
        y[mine[mine >= 0]] = x[row]
    assert (m.found("to") == y).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("cols, count", [(1, 1), (9, 3), (520, 8), (1500, 2), (24, 4), (8, 5), (40, 33), (16, 70)])
def test_weigh(cols, count, dtype):
    near, far, out = (ints((n, cols), dtype, n, -9, 10) for n in (7, 4 * count, 4))
    weights = np.random.default_rng(0).integers(0, 5, (4, count)).astype(np.float32) / 4
    place = np.random.default_rng(1).integers(-1, 12, 4 * count).astype(np.int32)
    weights[place.reshape(4, count) < 0] = np.nan                # of what was dropped: nobody looks at it
    m = Memory(out=[out] * 2, near=[near] * 2, far=[far] * 2, weights=[weights.reshape(-1)] * 2, place=[place] * 2)
    for row in (2, 3):
        m.call("weigh", "out", row, "near", "far", "weights", "place", count, 7)
        total = np.zeros(cols, np.float32)
        for i, n in enumerate(range(row * count, row * count + count)):
            if place[n] >= 0:
                total += weights[row, i] * (near[place[n]] if place[n] < 7 else far[n]).astype(np.float32)
        out[row] = total.astype(dtype_of(dtype))
    assert (m.found("out") == out).all()


def test_post():
    p = Lanes()
    p.machine.memory.put(0x1000, struct.pack("<QQII", 0x2000, 0x3000, 2, 0).ljust(128, b"\0"))
    p.machine.memory.put(0x3000, struct.pack("<2Q", 0x2000, 0x4000))
    p.machine.memory.put(0x2000, bytes(32)), p.machine.memory.put(0x4000, bytes(32))
    _, emit = lower("post", CountersType("c", 0, COMMUNICATOR), INT, INT, INT)
    p.active = np.arange(LANES) < 32                             # one warp: one addition
    emit(p, p.const(0x1000, p.i64), p.const(3), p.const(1), p.const(5))
    assert p.machine.memory.segments[0x4000].view(np.uint32)[3] == 5 and not p.machine.memory.segments[0x2000].any()


@pytest.mark.parametrize("kind", ["none", "relu", "silu", "gelu"])
def test_activate(kind):
    p, x = Lanes(), np.random.default_rng(0).standard_normal((32, LANES)).astype(np.float32) * 4
    _, emit = lower("activate", AccumulatorType(64, 64), lit(kind))
    found = np.array([floats(v) for v in emit(p, list(x), None)])
    assert np.allclose(found, FUNCTIONS[kind](x.astype(np.float64)), rtol=1e-5, atol=1e-6)
