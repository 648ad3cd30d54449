"""Arithmetic on register tiles: float32, in straight lines of instructions.

Besides the functions here, accumulators and row vectors have the operators ``+ - * /`` with each other and with numbers
(PTX: add, sub, mul, fma where the compiler joins them; a division multiplies by an approximate reciprocal). A row vector
holds one value for each row and is repeated over the columns. A NaN stays a NaN.
"""

import numpy as np

from .. import interpreter
from ..interpreter import Accumulator, Rows
from ..lowering import accumulator_type, constant, elementwise, is_accumulator, is_rows, need, primitive, result_of, rows_type
from .halves import KIND, check_dtype, join, split


def _check_shape(name, rows, cols=8):
    need(rows > 0 and rows % 64 == 0 and cols > 0 and cols % 8 == 0, f"{name}: [{rows}, {cols}]. A register tile has a multiple of 64 rows "
         "and of 8 columns.")


@primitive(scope="warpgroup")
def fill(rows, cols, value):
    """A register tile [rows, cols] that holds ``value`` everywhere.

    Args:
        rows: constant, multiple of 64; cols: constant, multiple of 8; value: number.

    PTX: mov.f32.
    """
    return Accumulator.of(np.full((rows, cols), value, np.float32))


@fill.lowering
def _(rows, cols, value):
    rows, cols = constant(rows, "fill: rows"), constant(cols, "fill: cols")
    _check_shape("fill", rows, cols)
    acc = accumulator_type(rows, cols)
    return acc, lambda p, _, __, value: p.pack([p.real(value)] * acc.size)


@primitive(scope="warpgroup")
def fill_rows(rows, value):
    """A row vector [rows] that holds ``value`` everywhere.

    Args:
        rows: constant, multiple of 64; value: number.

    PTX: mov.f32.
    """
    return Rows(np.full(rows, value))


@fill_rows.lowering
def _(rows, value):
    rows = constant(rows, "fill_rows: rows")
    _check_shape("fill_rows", rows)
    kind = rows_type(rows)
    return kind, lambda p, _, value: p.pack([p.real(value)] * kind.size)


@primitive(scope="warpgroup")
def cast(acc, dtype):
    """acc rounded to ``dtype`` (nearest even) and back: what storing it as ``dtype`` would keep.

    Args:
        acc: register tile; dtype: constant, "bfloat16" or "float16".

    PTX: cvt.rn.bf16x2.f32 or cvt.rn.f16x2.f32, and back.
    """
    check_dtype("cast", dtype)
    with np.errstate(over="ignore"):
        return Accumulator.of(interpreter.values(acc).astype(interpreter.dtype_of(dtype)).astype(np.float32))


@cast.lowering
def _(acc, dtype):
    kind = constant(dtype, "cast: dtype")
    need(is_accumulator(acc) and kind in KIND, f"cast: of {acc} to {kind!r}. It takes a register tile and \"bfloat16\" or \"float16\".")

    def emit(p, acc_v, _):
        v = p.elements(acc_v)
        return p.pack([x for i in range(0, acc.size, 2) for x in split(p, kind, join(p, kind, v[i], v[i + 1]))])
    return acc, emit


def _pure(text):
    """function(p, x, ...) of an instruction."""
    return lambda p, *values: p(f"{text} {', '.join(f'${i}' for i in range(len(values) + 1))};", *values, out=[p.f32], pure=True)


#: PTX writers of the larger and the smaller of two values; NaN if one is.
LARGER, SMALLER = _pure("max.NaN.f32"), _pure("min.NaN.f32")


def _rule(name, function):
    """The lowering of an element-wise function."""
    def rule(*operands):
        result = result_of(name, *operands)
        return result, lambda p, *values: elementwise(p, result, function, *zip(operands, values))
    return rule


@primitive(scope="warpgroup")
def maximum(x, y):
    """The larger of each two elements.

    Args:
        x, y: register tiles of one shape, row vectors or numbers, not both numbers.

    Returns: a register tile, or a row vector if there is none among them. ContractError if the shapes do not fit.

    PTX: max.NaN.f32.
    """
    return interpreter.elementwise(np.maximum, x, y)


@maximum.lowering
def _(x, y):
    return _rule("maximum", LARGER)(x, y)


@primitive(scope="warpgroup")
def minimum(x, y):
    """The smaller of each two elements of x and y; otherwise like ``maximum``.

    PTX: min.NaN.f32.
    """
    return interpreter.elementwise(np.minimum, x, y)


@minimum.lowering
def _(x, y):
    return _rule("minimum", SMALLER)(x, y)


@primitive(scope="warpgroup")
def exp2(x):
    """Two to the power of each element, to within 2 units in the last place on the device; 2 ** -inf is 0.

    Args:
        x: register tile or row vector.

    PTX: ex2.approx.ftz.f32.
    """
    return interpreter.elementwise(np.exp2, x)


@exp2.lowering
def _(x):
    return _rule("exp2", _pure("ex2.approx.ftz.f32"))(x)


@primitive(scope="warpgroup")
def log2(x):
    """The logarithm to base 2 of each element; of 0 it is -inf.

    Args:
        x: register tile or row vector.

    PTX: lg2.approx.ftz.f32.
    """
    return interpreter.elementwise(np.log2, x)


@log2.lowering
def _(x):
    return _rule("log2", _pure("lg2.approx.ftz.f32"))(x)


@primitive(scope="warpgroup")
def mask(acc, last, slope=0):
    """acc where column <= last + slope * row, -inf elsewhere: the end of a sequence (slope 0) or causality (slope 1).

    Args:
        acc: register tile; last: integer, possibly negative, or a row vector with one for each row (then slope is 0); slope:
            constant integer.

    PTX: setp.le.s32 or setp.le.f32, selp.f32.
    """
    values = interpreter.values(acc)
    rows, cols = np.indices(values.shape)
    return Accumulator.of(np.where(cols <= getattr(last, "value", last) + slope * rows, values, np.float32(-np.inf)))


@mask.lowering
def _(acc, last, slope):
    need(is_accumulator(acc), f"mask: of {acc}. It takes a register tile.")
    rise = constant(slope, "mask: slope")
    if is_rows(last):
        need(rise == 0, f"mask: a row vector with slope {rise}. It says itself where each row ends. Add the slope to it.")
        return acc, lambda p, acc_v, limits, _: _cut(p, acc, acc_v, p.elements(limits), lambda x, y: p.b.fcmp_ordered("<=", x, y), p.f32)

    def emit(p, acc_v, last, _):
        b, c, thread = p.b, p.const, p.thread()
        row = b.add(b.and_(b.lshr(thread, c(1)), c(48)), b.and_(b.lshr(thread, c(2)), c(7)))
        limit = b.add(b.sub(last, b.shl(b.and_(thread, c(3)), c(1))), p.scale(row, rise))
        limits = [b.add(limit, c(rise * (64 * (slot // 2) + 8 * (slot % 2)))) for slot in range(acc.rows // 32)]
        return _cut(p, acc, acc_v, limits, lambda x, y: b.icmp_signed("<=", x, y), p.i32)
    return acc, emit


def _cut(p, acc, acc_v, limits, compare, kind):
    """acc where the column, less the thread's first, is at most the limit of its row. Limits of float32 are those of whole rows."""
    low, values = p.const(float("-inf"), p.f32), []
    if kind == p.f32:
        own = p.b.sitofp(p.b.shl(p.b.and_(p.thread(), p.const(3)), p.const(1)), p.f32)
        limits = [p.b.fsub(limit, own) for limit in limits]
    for i, x in enumerate(p.elements(acc_v)):
        col = 8 * (i % (acc.cols // 2) // 4) + (i & 1)
        values.append(p.b.select(compare(p.const(col, kind), limits[acc.slot(i)]), x, low))
    return p.pack(values)


def _across(name, function):
    """The lowering of a reduction over the columns: four chains in each thread, then the quad that shares the row."""
    def rule(acc):
        need(is_accumulator(acc), f"{name}: of {acc}. It takes a register tile.")

        def emit(p, acc_v):
            chains = {}
            for i, x in enumerate(p.elements(acc_v)):
                key = acc.slot(i), i // 4 % 4
                chains[key] = function(p, chains[key], x) if key in chains else x
            totals = []
            for slot in range(acc.rows // 32):
                total, *rest = [chains[slot, k] for k in range(4) if (slot, k) in chains]
                for x in rest:
                    total = function(p, total, x)
                for distance in (1, 2):
                    total = function(p, total, p(f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;", total, out=[p.f32]))
                totals.append(total)
            return p.pack(totals)
        return rows_type(acc.rows), emit
    return rule


@primitive(scope="warpgroup")
def row_max(acc):
    """The largest element of each row.

    Args:
        acc: register tile [m, n].

    Returns: row vector [m].

    PTX: max.NaN.f32, shfl.sync.bfly.
    """
    return Rows(interpreter.values(acc).max(axis=1))


@row_max.lowering
def _(acc):
    return _across("row_max", LARGER)(acc)


@primitive(scope="warpgroup")
def row_sum(acc):
    """The sum of each row, in an order of the executor's own.

    Args:
        acc: register tile [m, n].

    Returns: row vector [m].

    PTX: add.f32, shfl.sync.bfly.
    """
    with np.errstate(all="ignore"):
        return Rows(interpreter.values(acc).sum(axis=1))


@row_sum.lowering
def _(acc):
    return _across("row_sum", lambda p, a, b: p.b.fadd(a, b))(acc)
