"""What an online softmax needs of registers, lane by lane, against its definitions."""

import numpy as np
import pytest
from numba.cuda import types

from pknumba.lowering.types import AccumulatorType, RowsType

from . import machine
from .lanes import Builder, Lanes, lower
from .layouts import ROW, fragments, lit, matrix, row_slots, rows_of, values


def _vote(m, match, args, registers, mask):
    some = np.array([registers[args[1]][w:w + 32].any() for w in machine.WARP])
    machine._set(registers, args[0], some, mask)


def _select(m, match, args, registers, mask):
    yes, no, which = (machine._value(registers, a) for a in args[1:])
    machine._set(registers, args[0], np.where(which, yes, no).astype(np.uint32), mask)


@pytest.fixture(autouse=True)
def words(monkeypatch):
    """Instructions and comparisons that only these lowerings write."""
    monkeypatch.setattr(machine, "_TABLE", [*machine._TABLE, (r"vote\.sync\.any\.pred", _vote), (r"selp\.u32", _select)])
    compare = {">": np.greater, "!=": np.not_equal}
    for name in ("fcmp_ordered", "fcmp_unordered"):
        monkeypatch.setattr(Builder, name, lambda self, op, x, y: compare[op](x, y), raising=False)


def test_climb():
    old, new = values(128, seed=1), values(128, seed=2)
    new[5] = np.nan
    result, emit = lower("climb", RowsType(128), RowsType(128), types.float32)
    found = rows_of(emit(Lanes(), row_slots(old), row_slots(new), 7.0))
    assert result == RowsType(128) and (found == np.where(new - old > 7, new, old)).all() and found[5] == old[5]
    assert (found != old).any() and (found != new).any()


@pytest.mark.parametrize("changed", [(), (3,), (70, 127)])
def test_rescale(changed):
    x, factors, acc = values((128, 40)), np.ones(128, np.float32), AccumulatorType(128, 40)
    factors[list(changed)] = 0.5
    result, emit = lower("rescale", acc, RowsType(128))
    p = Lanes()
    assert result == acc and (matrix(emit(p, fragments(x), row_slots(factors)), 128, 40) == x * factors[:, None]).all()


def test_mask_by_rows(monkeypatch):
    """Every row has its own last column; NaN hides all."""
    monkeypatch.setattr(Builder, "fcmp_ordered", lambda self, op, x, y: {"<=": np.less_equal}[op](x, y))
    x, last = values((128, 40)), np.arange(128) % 50 - 5.0
    last[9] = np.nan
    result, emit = lower("mask", AccumulatorType(128, 40), RowsType(128), lit(0))
    found = matrix(emit(Lanes(), fragments(x), row_slots(last), None), 128, 40)
    assert (found == np.where(np.arange(40) <= last[:, None], x, -np.inf)).all()


def test_row_numbers():
    result, emit = lower("row_numbers", lit(128))
    assert result == RowsType(128) and (rows_of(emit(Lanes(), None)) == np.arange(128)).all()


def test_shares_and_totals():
    x, acc = values((128, 40)), AccumulatorType(128, 40)
    shares = lower("row_shares", acc)[1](Lanes(), fragments(x))
    assert any((shares[0][ROW == r] != x[r].sum()).any() for r in range(8)), "a thread has only its own columns"
    total = lower("row_total", RowsType(128))[1](Lanes(), shares)
    assert (rows_of(total) == x.sum(1)).all()


@pytest.mark.parametrize("number", [0.0, 1.5, -0.1, 3e38, 1e-40])
def test_as_float(number):
    from pknumba.primitives import as_float
    bits = int(np.float32(number).view(np.int32))
    assert as_float(bits) == np.float32(number)
    p = Lanes()
    assert (lower("as_float", types.int32)[1](p, p.const(bits)) == np.float32(number)).all()
