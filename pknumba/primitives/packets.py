"""Small messages whose flags travel with the data: every 4 bytes go with the number of the call, in one 8-byte store.

Whoever finds the number has the data, so there is no fence, no signal and no second trip. A rank has an inbox of two halves,
for calls of even and of odd numbers, with a slot for each source: a half is written again only after its readers have sent
what they send in the next call, which they do after having read it.
"""

from ..interpreter import read, write
from ..lowering import constant, need, primitive
from .boxes import OPS, combined
from .units import ALIGNED, Units

#: Bytes of data in a packet of 16 bytes.
DATA = 8

#: Sets p once both halves of a packet carry the number of the call: $1 and $2 are the data, f the flag of the first.
_ARRIVED = ("ld.relaxed.sys.global.v2.b64 {x, y}, [$5]; mov.b64 {$1, f}, x; mov.b64 {$2, h}, y; "
            "setp.eq.u32 p, f, $6; setp.eq.and.u32 p, h, $6, p;")


def _piece(number, count, itemsize):
    """(first element, elements) of a piece of ``count`` elements."""
    size = 32 * DATA // itemsize
    return number * size, max(0, min(size, count - number * size))


def _slot(inbox, source, count, call):
    """Element at which the slot of a source begins, for that call."""
    width = DATA // inbox.dtype.itemsize
    return (call % 2 * inbox.world_size + source) * -(-count // width) * width


def _number(counters, source, number):
    return source * (len(counters.arrays[counters.rank]) // counters.world_size) + number


@primitive(scope="warp")
def send_packets(inbox, source, number, count, call, arrived):
    """A piece of this rank's ``source`` to its slot in every rank's inbox, with the number of the call.

    Args:
        inbox: symmetric, for 2 * world_size arrays of ``count`` elements. source: neighbouring elements of this rank.
        number: of the piece, 256 bytes each. count: elements in all. call: how many calls there were, this one included.
        arrived: counters that stand for the flags on the interpreter, a number for each source and piece.

    PTX: ld.relaxed.sys.global.v2.b32, st.relaxed.sys.global.v2.b64 to every rank.
    """
    size = source.dtype.itemsize
    first, n = _piece(number, count, size)
    values, at = read(source.span(first * size, n)), _slot(inbox, inbox.rank, count, call) + first
    for step in range(inbox.world_size):
        peer = (inbox.rank + step) % inbox.world_size
        write(inbox.span(at * size, n, peer), values)
        arrived.add(peer, _number(arrived, arrived.rank, number), 1)


@send_packets.lowering
def _(inbox, source, number, count, call, arrived):
    u = Units("send_packets", source.dtype)

    def emit(p, inbox_at, source_at, number, count, call, _):
        here, = p.tensor(source_at, "pointer")
        world, rank, table = p.tensor(inbox_at, "world", "rank", "peers")
        group, left, groups = _group(p, u, number, count)
        with p.when(p.b.icmp_signed(">", left, p.const(0))):
            words = _load(p, u, source_at, p.b.add(here, p.b.mul(p.wide(group), p.const(DATA, p.i64))), left)
            far = _packet(p, call, world, rank, groups, group)
            for r in p.loop(world):
                peer = p.b.urem(p.b.add(r, rank), world)
                base = p.field(p.i64, p.b.add(table, p.wide(p.b.shl(peer, p.const(3)))), 0)
                p("{ .reg .b64 x, y; mov.b64 x, {$1, $3}; mov.b64 y, {$2, $3}; st.relaxed.sys.global.v2.b64 [$0], {x, y}; }",
                  p.b.add(base, far), *words, call)
    return emit


@primitive(scope="warp")
def reduce_packets(to, inbox, number, count, call, arrived, op="sum"):
    """A piece of this rank's ``to``: that of every rank's message, waited for, combined in rank order as in ``reduce_box``.

    Args:
        to: neighbouring elements of this rank. inbox, number, count, call, arrived: as in ``send_packets``. op: constant, "sum",
            "min" or "max".

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.sys.global.v2.b64 in a loop bounded by %globaltimer, st.relaxed.sys.global.v2.b32.
    """
    size, parts = to.dtype.itemsize, []
    first, n = _piece(number, count, size)
    for source in range(inbox.world_size):
        arrived.wait(_number(arrived, source, number), call)
        parts.append(read(inbox.span((_slot(inbox, source, count, call) + first) * size, n)))
    write(to.span(first * size, n), combined(op, parts))


@reduce_packets.lowering
def _(to, inbox, number, count, call, arrived, op):
    op, role = constant(op, "reduce_packets: op"), arrived.role
    need(op in OPS, f"reduce_packets: op = {op!r}. It must be one of {', '.join(OPS)}.")
    u = Units("reduce_packets", to.dtype)

    def emit(p, to_at, inbox_at, number, count, call, *_):
        (there,), (own, world) = p.tensor(to_at, "pointer"), p.tensor(inbox_at, "pointer", "world")
        shared = p.shared_base()
        group, left, groups = _group(p, u, number, count)

        def packet(source):
            at = p.b.add(own, _packet(p, call, world, source, groups, group))
            done, low, high, seen = p.spin(_ARRIVED, shared, at, call, declare=".reg .u64 x, y; .reg .u32 f, h;", seen=3,
                                           after="mov.u32 $3, f;")
            with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
                p.give_up(role, p.COUNTER + (arrived.number << 8), source, call, seen, shared)
            return u.values(p, [low, high])

        with p.when(p.b.icmp_signed(">", left, p.const(0))):
            values = packet(p.const(0))
            total = u.variable(p, len(values))
            p.b.store(p.pack(values), total)
            for r in p.loop(p.b.sub(world, p.const(1))):
                more = packet(p.b.add(r, p.const(1)))
                p.b.store(p.pack([u.combine(p, op, a, b) for a, b in zip(p.elements(p.b.load(total)), more)]), total)
            words = u.words(p, p.elements(p.b.load(total)))
            _store(p, u, to_at, p.b.add(there, p.b.mul(p.wide(group), p.const(DATA, p.i64))), left, words)
    return emit


def _group(p, u, number, count):
    """(the lane's 8 bytes of data by number, elements of it inside (possibly none or more than it has), how many there are)."""
    width = DATA // u.itemsize
    group = p.b.add(p.lane(), p.scale(number, 32))
    return group, p.b.sub(count, p.scale(group, width)), p.b.udiv(p.b.add(count, p.const(width - 1)), p.const(width))


def _packet(p, call, world, source, groups, group):
    """Bytes from an inbox's start to the packet of a source."""
    slot = p.b.add(p.b.mul(p.b.and_(call, p.const(1)), world), source)
    return p.b.mul(p.wide(p.b.add(p.b.mul(slot, groups), group)), p.const(16, p.i64))


def _whole(p, u, tensor_at, left):
    """Whether the 8 bytes are all inside and start on 8 bytes."""
    aligned = p.b.icmp_unsigned(">=", p.parameter(p.i32, tensor_at, ALIGNED), p.const(DATA))
    return p.b.and_(aligned, p.b.icmp_signed(">=", left, p.const(DATA // u.itemsize)))


def _load(p, u, tensor_at, address, left):
    """Two words of a tensor; elements beyond its end are zero."""
    whole, words = _whole(p, u, tensor_at, left), p.variable(p.array(p.i32, 2), [0, 0])
    with p.when(whole):
        out = p("ld.relaxed.sys.global.v2.b32 {$0, $1}, [$2];", address, out=[p.i32, p.i32])
        p.b.store(p.pack([p.b.extract_value(out, i) for i in range(2)]), words)
    with p.when(p.b.not_(whole)):
        for e in range(DATA // u.itemsize):
            with p.when(p.b.icmp_signed(">", left, p.const(e))):
                bits = u.load_element(p, p.b.add(address, p.const(e * u.itemsize, p.i64)))
                word, shift = divmod(e * u.itemsize, 4)
                held = p.elements(p.b.load(words))
                held[word] = p.b.or_(held[word], p.b.shl(bits, p.const(8 * shift)))
                p.b.store(p.pack(held), words)
    return p.elements(p.b.load(words))


def _store(p, u, tensor_at, address, left, words):
    """Two words to a tensor; elements beyond its end are not written."""
    whole = _whole(p, u, tensor_at, left)
    with p.when(whole):
        p("st.relaxed.sys.global.v2.b32 [$0], {$1, $2};", address, *words)
    with p.when(p.b.not_(whole)):
        for e in range(DATA // u.itemsize):
            with p.when(p.b.icmp_signed(">", left, p.const(e))):
                word, shift = divmod(e * u.itemsize, 4)
                u.store_element(p, p.b.add(address, p.const(e * u.itemsize, p.i64)), p.b.lshr(words[word], p.const(8 * shift)))
