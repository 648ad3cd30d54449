"""Lowerings lane by lane: the bytes they read and write, computed from the very text they emit, against the layouts of the
PTX manual and of the bulk copy engine."""

import numpy as np
import pytest
from numba.cuda import types

from pknumba.errors import ContractError
from pknumba.lowering.types import AccumulatorType, OperandType, RowsType, TileType
from pknumba.tiles import Tile

from .lanes import Lanes, lower
from .layouts import BASE, CONSUMER, DTYPES, ROW, fragments, lit, matrix, row_slots, rows_of, shared_bytes, values
from .tiny import dtype_of


@pytest.mark.parametrize("rows, cols", [(64, 64), (128, 96), (64, 256)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_load(dtype, swizzle, rows, cols):
    if cols % Tile((rows, cols), dtype, swizzle).panel:
        pytest.skip("no such tile")
    x = values((rows, cols), dtype)
    tile = TileType("t", x.shape, dtype, swizzle, CONSUMER)
    acc, emit = lower("load", tile)
    p = Lanes(BASE + x.nbytes)
    p.machine.shared[BASE:] = shared_bytes(x, swizzle)
    assert acc == AccumulatorType(rows, cols)
    assert (matrix(emit(p, p.const(BASE)), rows, cols) == x.astype(np.float32)).all()


@pytest.mark.parametrize("rows, cols, panels", [(64, 64, 1), (128, 64, 2), (64, 32, 3)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_store(dtype, swizzle, rows, cols, panels):
    if cols % Tile((rows, cols), dtype, swizzle).panel:
        pytest.skip("no such tile")
    x = values((rows, cols * panels), dtype)
    tile, acc = TileType("t", (rows, cols), dtype, swizzle, CONSUMER), AccumulatorType(*x.shape)
    _, emit = lower("store", tile, acc, types.int32)
    for panel in range(panels):
        part = x[:, panel * cols:(panel + 1) * cols]
        p = Lanes(BASE + part.nbytes)
        emit(p, p.const(BASE), fragments(x), p.const(panel))
        assert (p.machine.shared[BASE:] == shared_bytes(part, swizzle)).all()


@pytest.mark.parametrize("rows, cols, panels", [(64, 64, 1), (128, 64, 2), (64, 32, 3)])
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_panel(dtype, swizzle, rows, cols, panels):
    if cols % Tile((rows, cols), dtype, swizzle).panel:
        pytest.skip("no such tile")
    x, y = values((rows, cols * panels), "float32", 1), values((rows, cols), dtype, 2)
    tile, acc = TileType("t", (rows, cols), dtype, swizzle, CONSUMER), AccumulatorType(*x.shape)
    result, emit = lower("add_panel", acc, tile, types.int32)
    for panel in range(panels):
        p, total = Lanes(BASE + y.nbytes), x.copy()
        p.machine.shared[BASE:] = shared_bytes(y, swizzle)
        total[:, panel * cols:(panel + 1) * cols] += y.astype(np.float32)
        found = emit(p, fragments(x), p.const(BASE), p.const(panel))
        assert result == acc and (matrix(found, *x.shape) == total).all()


def test_store_rounds_to_nearest_even():
    x = np.full((64, 64), 1 + 3 / 256, np.float32)             # halfway between two bfloat16: the even one is above
    _, emit = lower("store", TileType("t", x.shape, "bfloat16", 128, CONSUMER), AccumulatorType(*x.shape), types.int32)
    p = Lanes(x.size * 2)
    emit(p, p.const(0), fragments(x), p.const(0))
    assert (p.machine.shared == shared_bytes(x.astype(dtype_of("bfloat16")), 128)).all()


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("a_swizzle", [None, 32, 64, 128])
@pytest.mark.parametrize("by_row, b_swizzle", [(True, 128), (True, 64), (True, 32), (False, 128), (False, 64), (False, 32)])
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (128, 128, 64)])
def test_mma(dtype, a_swizzle, by_row, b_swizzle, m, n, k):
    """A from registers (None) or shared memory with each swizzle, B in both orders with each swizzle."""
    a, b = values((m, k), dtype, 1), values((n, k) if by_row else (k, n), dtype, 2)
    acc = AccumulatorType(m, n)
    a_type = OperandType(m, k, dtype) if a_swizzle is None else TileType("a", a.shape, dtype, a_swizzle, CONSUMER)
    b_type = TileType("b", b.shape, dtype, b_swizzle, CONSUMER)
    result, emit = lower("mma", acc, a_type, b_type, types.boolean, lit(by_row))
    at_b = BASE + a.nbytes
    p = Lanes(at_b + b.nbytes)
    if a_swizzle is None:
        a_value = lower("as_operand", AccumulatorType(m, k), lit(dtype))[1](p, fragments(a), None)
        assert len(a_value) == a_type.size
    else:
        p.machine.shared[BASE:at_b] = shared_bytes(a, a_swizzle)
        a_value = p.const(BASE)
    p.machine.shared[at_b:] = shared_bytes(b, b_swizzle)
    right = b.T if by_row else b
    product = a.astype(np.float32) @ right.astype(np.float32)
    found = emit(p, p.undefined(acc), a_value, p.const(at_b), p.const(0), None)
    assert result == acc and (matrix(found, m, n) == product).all()
    again = emit(p, found, a_value, p.const(at_b), p.const(1), None)
    assert (matrix(again, m, n) == 2 * product).all()


@pytest.mark.parametrize("rows, made", [(1, 64), (64, 64), (65, 128), (128, 128), (129, 192), (500, 192)])
def test_mma_of_some_rows(rows, made):
    """Blocks of 64 rows that do not matter are not multiplied; each number of blocks is one group."""
    a, b = values((192, 64), "bfloat16", 1), values((64, 64), "bfloat16", 2)
    acc, tile = AccumulatorType(192, 64), lambda x: TileType("x", x.shape, "bfloat16", 128, CONSUMER)
    _, emit = lower("mma", acc, tile(a), tile(b), types.boolean, lit(True), types.int32)
    p = Lanes(BASE + a.nbytes + b.nbytes)
    p.machine.shared[BASE:] = np.concatenate([shared_bytes(x, 128).ravel() for x in (a, b)])
    found = emit(p, p.undefined(acc), p.const(BASE), p.const(BASE + a.nbytes), p.const(0), None, p.const(rows))
    assert (matrix(found, 192, 64)[:made] == (a.astype(np.float32) @ b.T.astype(np.float32))[:made]).all()
    counted = p.machine.executed
    assert sum(n for name, n in counted.items() if "mma_async" in name) == made // 64 * 4
    assert sum(n for name, n in counted.items() if "commit_group" in name) == 1


def test_mma_of_some_rows_in_registers():
    b = TileType("b", (64, 64), "bfloat16", 128, CONSUMER)
    with pytest.raises(ContractError, match="A in registers is multiplied whole"):
        lower("mma", AccumulatorType(128, 64), OperandType(128, 64, "bfloat16"), b, types.boolean, lit(True), types.int32)


@pytest.mark.parametrize("last, slope", [(5, 0), (-1, 0), (70, 0), (0, 1), (-17, 1), (100, -2)])
def test_mask(last, slope):
    x, acc = values((128, 64)), AccumulatorType(128, 64)
    result, emit = lower("mask", acc, types.int32, lit(slope))
    p = Lanes()
    r, c = np.indices(x.shape)
    expected = np.where(c <= last + slope * r, x, -np.inf)
    assert (matrix(emit(p, fragments(x), p.const(last), None), 128, 64) == expected).all()


def test_reductions_of_rows():
    x, acc = values((128, 40)), AccumulatorType(128, 40)
    for name, expected in (("row_max", x.max(1)), ("row_sum", x.sum(1))):
        result, emit = lower(name, acc)
        assert result == RowsType(128) and (rows_of(emit(Lanes(), fragments(x))) == expected).all()
    x[3, 7] = np.nan
    found = lower("row_max", acc)[1](Lanes(), fragments(x))
    assert np.isnan(found[0][ROW == 3]).all()


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_cast(dtype):
    x, acc = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), AccumulatorType(64, 64)
    _, emit = lower("cast", acc, lit(dtype))
    assert (matrix(emit(Lanes(), fragments(x), None), 64, 64) == x.astype(dtype_of(dtype)).astype(np.float32)).all()


def test_elements():
    x, y, v = values((64, 32), seed=1), values((64, 32), seed=2), values(64, seed=3)
    acc, rows = AccumulatorType(64, 32), RowsType(64)
    for name, function in (("maximum", np.maximum), ("minimum", np.minimum)):
        for argtypes, given, expected in (((acc, acc), (fragments(x), fragments(y)), function(x, y)),
                                          ((rows, acc), (row_slots(v), fragments(x)), function(x, v[:, None])),
                                          ((acc, types.float32), (fragments(x), 1.0), function(x, 1))):
            result, emit = lower(name, *argtypes)
            assert result == acc and (matrix(emit(Lanes(), *given), 64, 32) == expected).all()
    small = x / 16
    result, emit = lower("exp2", rows)
    assert result == rows and (rows_of(emit(Lanes(), row_slots(v / 16))) == np.exp2(v / 16)).all()
    assert (matrix(lower("log2", acc)[1](Lanes(), fragments(np.exp2(small))), 64, 32) == np.log2(np.exp2(small))).all()
    assert (matrix(lower("fill", lit(64), lit(32), types.float32)[1](Lanes(), None, None, 2.5), 64, 32) == 2.5).all()
    assert (rows_of(lower("fill_rows", lit(64), types.float32)[1](Lanes(), None, 2.5)) == 2.5).all()
