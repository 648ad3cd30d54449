"""Boxes in packets: small boxes of any layout go to their readers with flags that travel with the data (see ``packets``).

A unit of a box, 16 bytes, is two packets. A rank has an inbox of two halves with a slot for each source. A piece is 32 units; in a slot
the first packets of its units lie together, then the second ones, so that a warp writes and reads whole lines.
"""

from ..interpreter import read, write
from ..lowering import constant, need, primitive
from .boxes import OPS, _runs, _span, combined
from .packets import await_packets, store_packet
from .units import UNIT, Units

#: Sources that a lane polls for at once.
SOURCES = 4


def _parts(box, number, dtype):
    """(run of neighbouring elements in the box, element of the slot where it begins) of a piece."""
    width, at = UNIT // dtype.itemsize, 32 * number
    for run in _runs(box, number, 1, dtype):
        yield run, at * width
        at += -(-run[2] // width)


def _slot(inbox, source, box, call):
    """Element where the slot of a source, of whole pieces, begins for that call."""
    return (call % 2 * inbox.world_size + source) * -(-int(box[4]) // 32) * 32 * (UNIT // inbox.dtype.itemsize)


def _number(counters, source, number):
    """Number of the counter that stands for a piece's flags."""
    return source * (len(counters.arrays[counters.rank]) // counters.world_size) + number


@primitive(scope="warp")
def send_box(inbox, source, number, box, call, arrived, slot=0, peer=None):
    """A piece of slot ``slot`` of this rank's ``source`` to its slot in the inbox of rank ``peer``, with the number of the call.

    Args:
        inbox: symmetric, for 2 * world_size boxes of whole pieces. source, number, box: as in ``copy_box``, for pieces of 32 units.
        call: how many calls there were, this one included. arrived: counters that stand for the flags on the interpreter, a number
            for each source and piece. peer: None for every rank.

    PTX: ld.relaxed.sys.global.v4.b32, or element by element; st.relaxed.sys.global.v2.b64 twice.
    """
    ranks = range(inbox.world_size) if peer is None else (peer,)
    for run, first in _parts(box, number, source.dtype):
        values = read(_span(source, slot, run))
        for rank in ranks:
            write(inbox.span((_slot(inbox, inbox.rank, box, call) + first) * source.dtype.itemsize, len(values), rank), values)
    for rank in ranks:
        arrived.add(rank, _number(arrived, arrived.rank, number), 1)


@send_box.lowering
def _(inbox, source, number, box, call, arrived, slot, peer):
    u, every = Units("send_box", source.dtype), getattr(peer, "name", "") == "none"

    def emit(p, inbox_at, source_at, number, box, call, _, slot, peer):
        world, rank, table = p.tensor(inbox_at, "world", "rank", "peers")
        unit, index = _unit(p, u, box, number)
        with p.when(p.b.icmp_unsigned(">", unit.left, p.const(0))):
            words = _load(p, u, source_at, unit, slot)
            far = _place(p, call, world, rank, box, index)
            for turn in p.loop(world if every else p.const(1)):
                target = p.b.urem(p.b.add(turn, rank), world) if every else peer
                base = p.b.add(p.field(p.i64, p.b.add(table, p.wide(p.b.shl(target, p.const(3)))), 0), far)
                store_packet(p, base, words[:2], call)
                store_packet(p, p.b.add(base, p.const(32 * UNIT, p.i64)), words[2:], call)
    return emit


@primitive(scope="warp")
def take_boxes(to, inbox, number, box, call, arrived):
    """That piece of every rank's box, waited for, to slot r of this rank's ``to`` for rank r.

    Args:
        to, number, box: as in ``copy_box``. inbox, call, arrived: as in ``send_box``.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.sys.global.v2.b64 of several ranks in a loop bounded by %globaltimer; st.relaxed.sys.global.v4.b32, or element by
    element.
    """
    for source in range(inbox.world_size):
        arrived.wait(_number(arrived, source, number), call)
        for run, first in _parts(box, number, to.dtype):
            write(_span(to, source, run), read(inbox.span((_slot(inbox, source, box, call) + first) * to.dtype.itemsize, run[2])))


@take_boxes.lowering
def _(to, inbox, number, box, call, arrived):
    u = Units("take_boxes", to.dtype)

    def emit(p, to_at, inbox_at, number, box, call, _):
        unit, index = _unit(p, u, box, number)
        for ranks, insides, words in _received(p, arrived, inbox_at, box, call, unit, index):
            for rank, inside, four in zip(ranks, insides, words):
                with p.when(inside):
                    _store(p, u, to_at, unit, rank, four)
    return emit


@primitive(scope="warp")
def reduce_boxes(to, inbox, number, box, call, arrived, op="sum"):
    """That piece of every rank's box, waited for and combined in rank order as in ``reduce_box``, to slot 0 of this rank's ``to``.

    Args:
        to, inbox, number, box, call, arrived: as in ``take_boxes``. op: constant, "sum", "min" or "max".

    PTX: as ``take_boxes``; add, min or max.
    """
    runs = list(_parts(box, number, to.dtype))
    parts = [[] for _ in runs]
    for source in range(inbox.world_size):
        arrived.wait(_number(arrived, source, number), call)
        for found, (run, first) in zip(parts, runs):
            found.append(read(inbox.span((_slot(inbox, source, box, call) + first) * to.dtype.itemsize, run[2])))
    for found, (run, _) in zip(parts, runs):
        write(_span(to, 0, run), combined(op, found))


@reduce_boxes.lowering
def _(to, inbox, number, box, call, arrived, op):
    op = constant(op, "reduce_boxes: op")
    need(op in OPS, f"reduce_boxes: op = {op!r}. It must be one of {', '.join(OPS)}.")
    u = Units("reduce_boxes", to.dtype)

    def emit(p, to_at, inbox_at, number, box, call, *_):
        unit, index = _unit(p, u, box, number)
        total = u.variable(p, u.width)
        for ranks, insides, words in _received(p, arrived, inbox_at, box, call, unit, index):
            sums = p.elements(p.b.load(total))
            for rank, inside, four in zip(ranks, insides, words):
                values, start = u.values(p, four), p.b.icmp_unsigned("==", rank, p.const(0))
                more = [p.b.select(start, b, u.combine(p, op, a, b)) for a, b in zip(sums, values)]
                sums = [p.b.select(inside, m, a) for m, a in zip(more, sums)]
            p.b.store(p.pack(sums), total)
        with p.when(p.b.icmp_unsigned(">", unit.left, p.const(0))):
            _store(p, u, to_at, unit, p.const(0), u.words(p, p.elements(p.b.load(total))))
    return emit


def _unit(p, u, box, number):
    """(the lane's unit of a piece, its number in the box)."""
    index = p.b.add(p.lane(), p.scale(number, 32))
    return u.unit(p, box, index), index


def _place(p, call, world, source, box, index):
    """Bytes from an inbox's start to the first packet of a unit; the second is 32 packets further."""
    b, many = p.b, p.const(2 * 32 * UNIT, p.i64)
    slot = b.add(b.mul(b.and_(call, p.const(1)), world), source)
    pieces = b.mul(p.wide(slot), p.wide(b.lshr(b.add(box[4], p.const(31)), p.const(5))))
    return b.add(b.mul(b.add(pieces, p.wide(b.lshr(index, p.const(5)))), many), p.wide(p.scale(b.and_(index, p.const(31)), UNIT)))


def _received(p, arrived, inbox_at, box, call, unit, index):
    """``for ranks, insides, words in _received(...)``: emit the code for some ranks, whether there are such, and their four words."""
    own, world = p.tensor(inbox_at, "pointer", "world")
    shared, many = p.shared_base(), SOURCES
    with p.when(p.b.icmp_unsigned(">", unit.left, p.const(0))):
        for turn in p.loop(p.b.udiv(p.b.add(world, p.const(many - 1)), p.const(many))):
            first = p.scale(turn, many)
            ranks = [p.b.add(first, p.const(i)) for i in range(many)]
            insides = [p.b.icmp_unsigned("<", r, world) for r in ranks]
            sources = [p.b.select(inside, r, first) for inside, r in zip(insides, ranks)]
            units = [p.b.add(own, _place(p, call, world, r, box, index)) for r in sources]
            places = [place for at in units for place in (at, p.b.add(at, p.const(32 * UNIT, p.i64)))]
            pairs = await_packets(p, arrived.role, arrived, shared, places, [r for r in sources for _ in (0, 1)], call)
            yield ranks, insides, [pairs[2 * i] + pairs[2 * i + 1] for i in range(many)]


def _load(p, u, tensor_at, unit, slot):
    """The four words of a unit; elements beyond its end are zero."""
    base, offset = u.base(p, tensor_at, slot), u.offset(p, tensor_at, unit)
    whole = u.whole(p, unit.left, u.aligned(p, tensor_at))
    words = p.variable(p.array(p.i32, 4), [0] * 4)
    with p.when(whole):
        p.b.store(p.pack(u.load(p, base, [offset], [whole])), words)
    with p.when(p.b.not_(whole)):
        for e in range(u.width):
            with p.when(p.b.icmp_signed(">", unit.left, p.const(e))):
                bits = u.load_element(p, p.b.add(p.b.add(base, offset), p.const(e * u.itemsize, p.i64)))
                word, shift = divmod(e * u.itemsize, 4)
                held = p.elements(p.b.load(words))
                held[word] = p.b.or_(held[word], p.b.shl(bits, p.const(8 * shift)))
                p.b.store(p.pack(held), words)
    return p.elements(p.b.load(words))


def _store(p, u, tensor_at, unit, slot, words):
    """Four words to a unit; elements beyond its end are not written."""
    base, offset = u.base(p, tensor_at, slot), u.offset(p, tensor_at, unit)
    whole = u.whole(p, unit.left, u.aligned(p, tensor_at))
    u.store(p, base, [offset], [whole], words)
    with p.when(p.b.not_(whole)):
        for e in range(u.width):
            with p.when(p.b.icmp_signed(">", unit.left, p.const(e))):
                word, shift = divmod(e * u.itemsize, 4)
                at = p.b.add(p.b.add(base, offset), p.const(e * u.itemsize, p.i64))
                u.store_element(p, at, p.b.lshr(words[word], p.const(8 * shift)))
