"""Boxes in packets: small boxes of any layout go to their readers with flags that travel with the data (see ``packets``).

A piece is 96 units of a box, three of each lane. What a rank has for itself goes into no packet: it is read where it lies. A message may be
several rows, each a slot of its tensor; an inbox then has as many in each slot.
"""

from ..interpreter import read, write
from ..lowering import constant, need, primitive
from .boxes import OPS, _runs, _span, combined
from .packets import PIECE, UNITS, await_packets, inside, packet_place, store_packets
from .units import UNIT, Units

#: Sources that a lane polls for at once.
SOURCES = 2


def _parts(box, number, dtype):
    """(run of neighbouring elements in the box, element of the slot where it begins) of a piece."""
    width, at = UNIT // dtype.itemsize, PIECE * number
    for run in _runs(box, number, UNITS, dtype):
        yield run, at * width
        at += -(-run[2] // width)


def _taken(inbox, source, rank, run, first, box, call, row, rows):
    """What of a run lies in the inbox of a rank, in the slot of a source for that call; ``first``: where it begins."""
    size, elements = inbox.dtype.itemsize, -(-int(box[4]) // PIECE) * PIECE * (UNIT // inbox.dtype.itemsize)
    slot = (call % 2 * inbox.world_size + source) * rows + row
    return inbox.span((slot * elements + first) * size, run[2], rank)


def _number(counters, source, number, row, rows):
    """Number of the counter that stands for a piece's flags."""
    pieces = len(counters.arrays[counters.rank]) // counters.world_size
    return source * pieces + row * (pieces // rows) + number


@primitive(scope="warp")
def send_box(inbox, source, number, box, call, arrived, slot=0, peer=None, row=0, rows=1):
    """A piece of slot ``slot`` of this rank's ``source`` to its slot in the inbox of another rank, with the number of the call.

    Args:
        inbox: symmetric, for 2 * world_size boxes (times rows) of whole pieces. source, number, box: as in ``copy_box``, for pieces of 96
            units. call: how many calls there were, this one included. arrived: counters that stand for the flags on the interpreter, a
            number for each source and piece. peer: which; None for every other rank. row, rows: which row of a message of how many.

    PTX: ld.relaxed.sys.global.v4.b32, or element by element; st.relaxed.sys.global.b128 four times.
    """
    ranks = [r for r in range(inbox.world_size) if r != inbox.rank] if peer is None else (peer,)
    for run, first in _parts(box, number, source.dtype):
        values = read(_span(source, slot, run))
        for rank in ranks:
            write(_taken(inbox, inbox.rank, rank, run, first, box, call, row, rows), values)
    for rank in ranks:
        arrived.add(rank, _number(arrived, arrived.rank, number, row, rows), 1)


@send_box.lowering
def _(inbox, source, number, box, call, arrived, slot, peer, row, rows):
    u, every = Units("send_box", source.dtype, UNITS), getattr(peer, "name", "") == "none"

    def emit(p, inbox_at, source_at, number, box, call, _, slot, peer, row, rows):
        world, rank, table = p.tensor(inbox_at, "world", "rank", "peers")
        (offsets,), left = u.places(p, box, number, (source_at,))
        words = _load(p, u, u.base(p, source_at, slot), offsets, left, u.aligned(p, source_at))
        far = packet_place(p, call, world, rank, _pieces(p, box), number, row, rows)
        for turn in p.loop(p.b.sub(world, p.const(1)) if every else p.const(1)):
            target = _after(p, rank, turn, world) if every else peer
            inbox = p.of_rank(table, target)
            store_packets(p, p.b.add(inbox, far), words, call, inside(p, left))
    return emit


@primitive(scope="warp")
def take_boxes(to, inbox, source, number, box, call, arrived, slot=0):
    """That piece of every rank's box, waited for, to slot r of this rank's ``to`` for rank r: its own from slot ``slot`` of ``source``.

    Args:
        to, number, box: as in ``copy_box``. inbox, source, call, arrived: as in ``send_box``.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.sys.global.b128 of several ranks in a loop bounded by %globaltimer; st.relaxed.sys.global.v4.b32, or element by
    element.
    """
    for rank in range(inbox.world_size):
        if rank != inbox.rank:
            arrived.wait(_number(arrived, rank, number, 0, 1), call)
        for run, first in _parts(box, number, to.dtype):
            own = rank == inbox.rank
            write(_span(to, rank, run), read(_span(source, slot, run) if own else _taken(inbox, rank, None, run, first, box, call, 0, 1)))


@take_boxes.lowering
def _(to, inbox, source, number, box, call, arrived, slot):
    u = Units("take_boxes", to.dtype, UNITS)

    def emit(p, to_at, inbox_at, source_at, number, box, call, _, slot):
        (targets, offsets), left = u.places(p, box, number, (to_at, source_at))
        own, aligned = _load(p, u, u.base(p, source_at, slot), offsets, left, u.aligned(p, source_at)), u.aligned(p, to_at)
        none, one = p.const(0), p.const(1)
        for ranks, there, words in _received(p, arrived, inbox_at, box, call, number, none, one, left, own):
            for rank, some, twelve in zip(ranks, there, words):
                with p.when(some):
                    _store(p, u, u.base(p, to_at, rank), targets, left, aligned, twelve)
    return emit


@primitive(scope="warp")
def reduce_boxes(to, inbox, source, number, box, call, arrived, op="sum", slot=0, row=0, rows=1, more=None):
    """That piece of every rank's box, waited for and combined in rank order as in ``reduce_box``, to slot ``row`` of this rank's ``to``.

    Args:
        to, inbox, source, number, box, call, arrived, slot: as in ``take_boxes``. op: constant, "sum", "min" or "max". row, rows: as in
            ``send_box``. more: tensor of this rank whose slot ``row`` is combined last, before rounding; None: there is none.

    PTX: as ``take_boxes``; add, min or max.
    """
    runs = list(_parts(box, number, to.dtype))
    found = [[] for _ in runs]
    for rank in range(inbox.world_size):
        if rank != inbox.rank:
            arrived.wait(_number(arrived, rank, number, row, rows), call)
        for parts, (run, first) in zip(found, runs):
            own = rank == inbox.rank
            parts.append(read(_span(source, slot, run) if own else _taken(inbox, rank, None, run, first, box, call, row, rows)))
    for parts, (run, _) in zip(found, runs):
        write(_span(to, row, run), combined(op, parts + ([] if more is None else [read(_span(more, row, run))])))


@reduce_boxes.lowering
def _(to, inbox, source, number, box, call, arrived, op, slot, row, rows, more):
    op, given = constant(op, "reduce_boxes: op"), hasattr(more, "ident")
    need(op in OPS, f"reduce_boxes: op = {op!r}. It must be one of {', '.join(OPS)}.")
    u = Units("reduce_boxes", to.dtype, UNITS)

    def emit(p, to_at, inbox_at, source_at, number, box, call, _, __, slot, row, rows, more_at):
        tensors = [to_at, source_at] + ([more_at] if given else [])
        (targets, offsets, *last), left = u.places(p, box, number, tensors)
        own = _load(p, u, u.base(p, source_at, slot), offsets, left, u.aligned(p, source_at))
        total = u.variable(p, UNITS * u.width)
        for ranks, there, words in _received(p, arrived, inbox_at, box, call, number, row, rows, left, own):
            sums = p.elements(p.b.load(total))
            for rank, some, twelve in zip(ranks, there, words):
                values, start = u.values(p, twelve), p.b.icmp_unsigned("==", rank, p.const(0))
                added = [p.b.select(start, b, u.combine(p, op, a, b)) for a, b in zip(sums, values)]
                sums = [p.b.select(some, m, a) for m, a in zip(added, sums)]
            p.b.store(p.pack(sums), total)
        sums = p.elements(p.b.load(total))
        for places in last:                     # not before the wait: there are no registers for it
            words = _load(p, u, u.base(p, more_at, row), places, left, u.aligned(p, more_at))
            sums = [u.combine(p, op, a, b) for a, b in zip(sums, u.values(p, words))]
        _store(p, u, u.base(p, to_at, row), targets, left, u.aligned(p, to_at), u.words(p, sums))
    return emit


def _after(p, rank, turn, world):
    """The rank ``turn + 1`` after that one, around the world."""
    target = p.b.add(p.b.add(turn, rank), p.const(1))
    return p.b.select(p.b.icmp_unsigned(">=", target, world), p.b.sub(target, world), target)


def _pieces(p, box):
    """How many pieces a box has."""
    return p.b.udiv(p.b.add(box[4], p.const(PIECE - 1)), p.const(PIECE))


def _received(p, arrived, inbox_at, box, call, number, row, rows, left, own):
    """``for ranks, there, words in _received(...)``: emit the code for some ranks, whether there are such, and their twelve words each:
    ``own`` of this one."""
    start, world, me = p.tensor(inbox_at, "pointer", "world", "rank")
    shared, pieces, some = p.shared_base(), _pieces(p, box), inside(p, left)
    for turn in p.loop(p.b.udiv(p.b.add(world, p.const(SOURCES - 1)), p.const(SOURCES))):
        ranks = [p.b.add(p.scale(turn, SOURCES), p.const(i)) for i in range(SOURCES)]
        there = [p.b.icmp_unsigned("<", r, world) for r in ranks]
        sent = [p.b.and_(here, p.b.not_(p.b.icmp_unsigned("==", r, me))) for here, r in zip(there, ranks)]
        places = [p.b.add(start, packet_place(p, call, world, p.b.select(here, r, p.const(0)), pieces, number, row, rows))
                  for here, r in zip(sent, ranks)]
        wanted = [[p.b.and_(here, one) for one in some] for here in sent]
        found = await_packets(p, arrived, shared, places, wanted, ranks, call)
        yield ranks, there, [[p.b.select(here, a, b) for a, b in zip(words, own)] for here, words in zip(sent, found)]


def _load(p, u, base, offsets, left, aligned):
    """The twelve words of a lane's units; elements beyond a unit's end are zero."""
    whole = [u.whole(p, n, aligned) for n in left]
    words = p.variable(p.array(p.i32, 4 * UNITS), [0] * 4 * UNITS)
    p.b.store(p.pack(u.load(p, base, offsets, whole)), words)
    for i in range(UNITS):
        with p.when(_partly(p, left[i], whole[i])):
            held = p.elements(p.b.load(words))
            held[4 * i:4 * i + 4] = u.load_elements(p, p.b.add(base, offsets[i]), left[i])
            p.b.store(p.pack(held), words)
    return p.elements(p.b.load(words))


def _store(p, u, base, offsets, left, aligned, words):
    """Twelve words to a lane's units; elements beyond a unit's end are not written."""
    whole = [u.whole(p, n, aligned) for n in left]
    u.store(p, base, offsets, whole, words)
    for i in range(UNITS):
        with p.when(_partly(p, left[i], whole[i])):
            u.store_elements(p, p.b.add(base, offsets[i]), left[i], words[4 * i:4 * i + 4])


def _partly(p, left, whole):
    """Whether a unit has elements that do not move as one vector."""
    return p.b.and_(p.b.icmp_unsigned(">", left, p.const(0)), p.b.not_(whole))
