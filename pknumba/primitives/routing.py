"""Where tokens go: counting and dealing out the entries of a router's table, by warps. Tables are rows of int32 in global memory.

An entry of the table ``indices`` is the number of an expert; one that is no expert's is dropped. Entries are dealt in their order, so
the result is the same whoever computes it.
"""

import numpy as np

from ..interpreter import read, write
from ..lowering import Int, integers_type, primitive

#: Vectors of 32 entries that a warp loads at once: their latencies are most of its time.
_AHEAD = 16


def _start(p, tensor_at, peer=None):
    """Address of this rank's tensor, or of a peer's."""
    if peer is None:
        return p.tensor(tensor_at, "pointer")[0]
    return p.of_rank(p.tensor(tensor_at, "peers")[0], peer)


def _integer(p, start, number):
    """Address of an integer of a tensor that begins there."""
    return p.b.add(start, p.wide(p.b.shl(number, p.const(2))))


def _address(p, tensor_at, number, peer=None):
    """Address of an integer of this rank's tensor, or of a peer's."""
    return _integer(p, _start(p, tensor_at, peer), number)


def _looked_up(p, address, inside, otherwise):
    """The integer there for lanes that are ``inside``, a constant for others."""
    text = f"{{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.b32 $0, {otherwise}; @p ld.global.b32 $0, [$1]; }}"
    return p(text, address, p.b.zext(inside, p.i32), out=[p.i32])


def _entries(p, indices_at, begin, end):
    """``for slot, inside, value in ...``: emit code for this lane's entries, ``_AHEAD`` of them loaded at once."""
    b, c = p.b, p.const
    for turn in p.loop(b.udiv(b.add(b.sub(end, begin), c(32 * _AHEAD - 1)), c(32 * _AHEAD))):
        first = b.add(b.add(begin, p.scale(turn, 32 * _AHEAD)), p.lane())
        slots = [b.add(first, c(32 * i)) for i in range(_AHEAD)]
        inside = [b.icmp_unsigned("<", slot, end) for slot in slots]
        values = [_looked_up(p, _address(p, indices_at, slot), here, -1) for slot, here in zip(slots, inside)]
        yield from zip(slots, inside, values)


def _vote(p, condition):
    """The lanes for which a condition holds, as bits."""
    text = "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.ballot.b32 $0, p, 0xffffffff; }"
    return p(text, p.b.zext(condition, p.i32), out=[p.i32])


def _ones(p, bits):
    return p("popc.b32 $0, $1;", bits, out=[p.i32], pure=True)


@primitive(scope="warp")
def tally(indices, begin, end, bound):
    """How many of the entries from ``begin`` to before ``end`` are at least 0 and below ``bound``.

    Args:
        indices: ``g.name``, int32 of this rank that an earlier launch wrote; begin, end, bound: integers, begin at most end.

    PTX: ld.global.b32, vote.sync.ballot, popc.
    """
    values = read(indices.span(4 * int(begin), int(end) - int(begin)))
    return int(((values >= 0) & (values < bound)).sum())


@tally.lowering
def _(indices, begin, end, bound):
    def emit(p, indices_at, begin, end, bound):
        total = p.variable(p.i32, 0)
        for _, _, value in _entries(p, indices_at, begin, end):
            below = p.b.and_(p.b.icmp_signed(">=", value, p.const(0)), p.b.icmp_signed("<", value, bound))
            p.b.store(p.b.add(p.b.load(total), _ones(p, _vote(p, below))), total)
        return p.b.load(total)
    return Int, emit


@primitive(scope="warp")
def deal(indices, begin, end, expert, row, limit, place, shift, source, peer, name):
    """Each entry that names ``expert`` gets the next of rank ``peer``'s rows from ``row`` on, as long as they lie before ``limit``.

    Args:
        indices, begin, end: as in ``tally``. expert, row, limit: integers.
        place: ``g.name`` of this rank: place[slot] becomes the row + shift, or -1 if the row does not lie before ``limit``.
        source: symmetric ``g.name``: source[row] of rank ``peer`` becomes name + slot.

    PTX: ld.global.b32, vote.sync.ballot, popc, st.relaxed.sys.global.b32.
    """
    slots = int(begin) + np.flatnonzero(read(indices.span(4 * int(begin), int(end) - int(begin))) == expert)
    kept = slots[:max(0, int(limit) - int(row))]
    if len(kept):
        write(source.span(4 * int(row), len(kept), peer), kept + int(name))
    for i, slot in enumerate(slots):
        write(place.span(4 * int(slot), 1), row + i + shift if i < len(kept) else -1)


@deal.lowering
def _(indices, begin, end, expert, row, limit, place, shift, source, peer, name):
    def emit(p, indices_at, begin, end, expert, row, limit, place_at, shift, source_at, peer, name):
        b, c, slot_of = p.b, p.const, p.variable(p.i32, 0)
        b.store(row, slot_of)
        rows = _start(p, source_at, peer)                       # once: what is stored may be anywhere, so it would be loaded again
        before = p("mov.u32 $0, %lanemask_lt;", out=[p.i32], pure=True)
        store = "st.relaxed.sys.global.b32 [$0], $1;"
        for slot, inside, value in _entries(p, indices_at, begin, end):
            mine = b.and_(inside, b.icmp_signed("==", value, expert))
            votes, next_row = _vote(p, mine), b.load(slot_of)
            own = b.add(next_row, _ones(p, b.and_(votes, before)))
            keep = b.and_(mine, b.icmp_signed("<", own, limit))
            with p.when(mine):
                p(store, _address(p, place_at, slot), b.select(keep, b.add(own, shift), c(-1)))
            with p.when(keep):
                p(store, _integer(p, rows, own), b.add(name, slot))
            b.store(b.add(next_row, _ones(p, votes)), slot_of)
    return emit


@primitive(scope="warp")
def drop(indices, begin, end, experts, place):
    """place[slot] = -1 for each entry that is no expert's: below 0, or not below ``experts``.

    Args:
        indices, begin, end, place: as in ``deal``; experts: how many there are.

    PTX: ld.global.b32, st.relaxed.sys.global.b32.
    """
    values = read(indices.span(4 * int(begin), int(end) - int(begin)))
    for slot in int(begin) + np.flatnonzero((values < 0) | (values >= experts)):
        write(place.span(4 * int(slot), 1), -1)


@drop.lowering
def _(indices, begin, end, experts, place):
    def emit(p, indices_at, begin, end, experts, place_at):
        for slot, inside, value in _entries(p, indices_at, begin, end):
            with p.when(p.b.and_(inside, p.b.icmp_unsigned(">=", value, experts))):
                p("st.relaxed.sys.global.b32 [$0], $1;", _address(p, place_at, slot), p.const(-1))
    return emit


@primitive(scope="warp")
def add_up(table, numbers, count):
    """For each of ``numbers`` the sum of table[number], ..., table[number + count - 1], which somebody that was waited for has written.

    Args:
        table: ``g.name``, int32 of this rank; numbers: a tuple of integers; count: integer, at most 32.

    Returns: a tuple of integers.

    PTX: ld.global.b32 by a lane for each, of all sums before the first is made; shfl.sync.bfly.
    """
    return tuple(int(read(table.span(4 * int(number), int(count))).sum()) for number in numbers)


@add_up.lowering
def _(table, numbers, count):
    def emit(p, table_at, numbers, count):
        b, lane = p.b, p.lane()
        inside = b.icmp_unsigned("<", lane, count)
        sums = [_looked_up(p, _address(p, table_at, b.add(number, lane)), inside, 0) for number in numbers]
        for step in (16, 8, 4, 2, 1):
            sums = [b.add(value, p(f"shfl.sync.bfly.b32 $0, $1, {step}, 31, -1;", value, out=[p.i32])) for value in sums]
        return p.pack(sums)
    return integers_type(len(numbers)), emit


@primitive(scope="warp")
def put(table, number, value, everywhere=False):
    """table[number] = value, of this rank or of every rank. Peers read it after an ``announce`` of this block.

    Args:
        table: ``g.name``, int32, symmetric if ``everywhere``; number, value: integers; everywhere: constant bool.

    PTX: st.relaxed.sys.global.b32, by a lane for each rank.
    """
    for peer in range(table.world_size) if everywhere else [table.rank]:
        write(table.span(4 * int(number), 1, peer), value)


@put.lowering
def _(table, number, value, everywhere):
    from .meetings import _ranks
    store, all_of_them = "st.relaxed.sys.global.b32 [$0], $1;", bool(getattr(everywhere, "literal_value", False))

    def emit(p, table_at, number, value, _):
        if all_of_them:
            for rank in _ranks(p, *p.tensor(table_at, "world")):
                p(store, _address(p, table_at, number, rank), value)
        else:
            with p.leader("warp"):
                p(store, _address(p, table_at, number), value)
    return emit
