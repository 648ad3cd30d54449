"""What an online softmax needs of registers: maxima that stand as long as they do, sums that wait to be added up, numbers from the host."""

import struct

import numpy as np

from .. import interpreter
from ..errors import ContractError
from ..interpreter import Rows
from ..lowering import Real, constant, is_accumulator, is_rows, need, primitive, rows_type


@primitive()
def as_float(bits):
    """The float32 whose 32 bits are this integer: how a number that is no integer comes in ``g``.

    Args:
        bits: integer.

    PTX: mov.b32.
    """
    return np.float32(struct.unpack("<f", struct.pack("<i", int(bits)))[0])


@as_float.lowering
def _(bits):
    return Real, lambda p, bits: p.b.bitcast(bits, p.f32)


@primitive(scope="warpgroup")
def climb(old, new, slack):
    """``new`` where it exceeds ``old`` by more than ``slack``, else ``old``: a running maximum that seldom changes.

    Args:
        old, new: row vectors; slack: number, not negative. Where new is NaN the result is old.

    Returns: row vector r with old <= r and new <= r + slack.

    PTX: sub.f32, setp.gt.f32, selp.f32.
    """
    return interpreter.elementwise(lambda a, b, s: np.where(b - a > s, b, a), old, new, slack)


@climb.lowering
def _(old, new, slack):
    need(is_rows(old) and old == new, f"climb: from {old} to {new}. It takes two row vectors of one length.")

    def emit(p, old_v, new_v, slack):
        pairs, limit = zip(p.elements(old_v), p.elements(new_v)), p.real(slack)
        return p.pack([p.b.select(p.b.fcmp_ordered(">", p.b.fsub(b, a), limit), b, a) for a, b in pairs])
    return old, emit


@primitive(scope="warpgroup")
def rescale(acc, rows):
    """acc * rows; a warp all of whose factors are 1 does nothing.

    Args:
        acc: register tile [m, n]; rows: row vector [m].

    PTX: setp.neu.f32, vote.sync.any, mul.f32.
    """
    return acc * rows


@rescale.lowering
def _(acc, rows):
    need(is_accumulator(acc) and is_rows(rows) and acc.rows == rows.rows, f"rescale: of {acc} by {rows}. It takes a register tile and "
         "a row vector with as many rows.")
    some = "{ .reg .pred p, q; setp.ne.u32 p, $1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 $0, 1, 0, q; }"

    def emit(p, acc_v, rows_v):
        factors, one = p.elements(rows_v), p.const(1.0, p.f32)
        change = p.const(0)
        for x in factors:
            change = p.b.or_(change, p.b.zext(p.b.fcmp_unordered("!=", x, one), p.i32))
        slot = p.variable(p.array(p.f32, acc.size), [0.0] * acc.size)
        p.b.store(acc_v, slot)
        with p.when(p.b.icmp_unsigned(">", p(some, change, out=[p.i32]), p.const(0))):
            p.b.store(p.pack([p.b.fmul(x, factors[acc.slot(i)]) for i, x in enumerate(p.elements(acc_v))]), slot)
        return p.b.load(slot)
    return acc, emit


@primitive(scope="warpgroup")
def row_shares(acc):
    """The sum of each row in four shares, one in each thread that has elements of it: ``row_total`` adds them up.

    Args:
        acc: register tile [m, n].

    Returns: row vector [m] of shares. Sums of such vectors, and products with row vectors of whole values, are shares again.

    PTX: add.f32.
    """
    with np.errstate(all="ignore"):
        return Rows(interpreter.values(acc).sum(axis=1))


@row_shares.lowering
def _(acc):
    need(is_accumulator(acc), f"row_shares: of {acc}. It takes a register tile.")

    def emit(p, acc_v):
        chains = {}
        for i, x in enumerate(p.elements(acc_v)):
            key = acc.slot(i), i & 1
            chains[key] = p.b.fadd(chains[key], x) if key in chains else x
        return p.pack([p.b.fadd(chains[slot, 0], chains[slot, 1]) for slot in range(acc.rows // 32)])
    return rows_type(acc.rows), emit


@primitive(scope="warpgroup")
def row_total(rows):
    """The sum of a row's four shares, in each thread that has elements of it.

    Args:
        rows: row vector [m] of shares, from ``row_shares``.

    Returns: row vector [m].

    PTX: shfl.sync.bfly, add.f32.
    """
    if not isinstance(rows, Rows):
        raise ContractError(f"row_total: of a {type(rows).__name__}. It takes a row vector. Make it with row_shares.")
    return Rows(rows.value)


@row_total.lowering
def _(rows):
    need(is_rows(rows), f"row_total: of {rows}. It takes a row vector.")

    def emit(p, rows_v):
        totals = p.elements(rows_v)
        for distance in (1, 2):
            totals = [p.b.fadd(x, p(f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;", x, out=[p.f32])) for x in totals]
        return p.pack(totals)
    return rows, emit


@primitive(scope="warpgroup")
def row_numbers(rows):
    """0, 1, 2, ... as a row vector.

    Args:
        rows: constant, multiple of 64.

    PTX: cvt.rn.f32.s32.
    """
    return Rows(np.arange(rows))


@row_numbers.lowering
def _(rows):
    kind = rows_type(constant(rows, "row_numbers: rows"))

    def emit(p, _):
        b, c, thread = p.b, p.const, p.thread()
        first = b.add(b.and_(b.lshr(thread, c(1)), c(48)), b.and_(b.lshr(thread, c(2)), c(7)))
        return p.pack([b.sitofp(b.add(first, c(64 * (slot // 2) + 8 * (slot % 2))), p.f32) for slot in range(kind.size)])
    return kind, emit


__all__ = ["as_float", "climb", "rescale", "row_numbers", "row_shares", "row_total"]
