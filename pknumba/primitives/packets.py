"""Small messages whose flags travel with the data: every 4 bytes go with the number of the call, in one 8-byte store.

Whoever finds the number has the data, so there is no fence, no signal and no second trip. A rank has an inbox of two halves,
for calls of even and of odd numbers, with a slot for each source: a half is written again only after its readers have sent
what they send in the next call, which they do after having read it. A message may be several rows, each a slot of its tensor.
"""

from ..interpreter import read, write
from ..lowering import constant, need, primitive
from .boxes import OPS, combined
from .units import ALIGNED, Units

#: Bytes of data in a packet of 16 bytes, and packets that a lane polls for at once.
DATA, AHEAD = 8, 4


def _piece(number, count, itemsize):
    """(first element, elements) of a piece of ``count`` elements."""
    size = 32 * DATA // itemsize
    return number * size, max(0, min(size, count - number * size))


def _slot(inbox, source, count, call, row, rows):
    """Element at which a row in the slot of a source begins, for that call."""
    width = DATA // inbox.dtype.itemsize
    return ((call % 2 * inbox.world_size + source) * rows + row) * -(-count // width) * width


def _number(counters, source, number, row, rows):
    """Number of the counter that stands for a piece's flags."""
    pieces = len(counters.arrays[counters.rank]) // counters.world_size
    return source * pieces + row * (pieces // rows) + number


@primitive(scope="warp")
def send_packets(inbox, source, number, count, call, arrived, row=0, rows=1):
    """A piece of this rank's ``source`` to its slot in every rank's inbox, with the number of the call.

    Args:
        inbox: symmetric, for 2 * world_size arrays of ``rows`` rows of ``count`` elements. source: neighbouring elements of this
            rank. number: of the piece, 256 bytes each. count: elements in all. call: how many calls there were, this one included.
        arrived: counters that stand for the flags on the interpreter, a number for each source and piece.
        row, rows: number of the row (slot of ``source``) that the piece is of, and how many there are.

    PTX: ld.relaxed.sys.global.v2.b32, st.relaxed.sys.global.v2.b64 to every rank.
    """
    size = source.dtype.itemsize
    first, n = _piece(number, count, size)
    values, at = read(source.span(row * source.step + first * size, n)), _slot(inbox, inbox.rank, count, call, row, rows) + first
    for step in range(inbox.world_size):
        peer = (inbox.rank + step) % inbox.world_size
        write(inbox.span(at * size, n, peer), values)
        arrived.add(peer, _number(arrived, arrived.rank, number, row, rows), 1)


@send_packets.lowering
def _(inbox, source, number, count, call, arrived, row, rows):
    u = Units("send_packets", source.dtype)

    def emit(p, inbox_at, source_at, number, count, call, _, row, rows):
        world, rank, table = p.tensor(inbox_at, "world", "rank", "peers")
        group, left, groups = _group(p, u, number, count)
        with p.when(p.b.icmp_signed(">", left, p.const(0))):
            words = _load(p, u, source_at, _data(p, u, source_at, row, group), left)
            far = _packet(p, call, world, rank, groups, group, row, rows)
            for r in p.loop(world):
                peer = p.b.urem(p.b.add(r, rank), world)
                base = p.field(p.i64, p.b.add(table, p.wide(p.b.shl(peer, p.const(3)))), 0)
                store_packet(p, p.b.add(base, far), words, call)
    return emit


def store_packet(p, address, words, call):
    """Two words, each with the number of the call."""
    p("{ .reg .b64 x, y; mov.b64 x, {$1, $3}; mov.b64 y, {$2, $3}; st.relaxed.sys.global.v2.b64 [$0], {x, y}; }", address, *words, call)


@primitive(scope="warp")
def reduce_packets(to, inbox, number, count, call, arrived, op="sum", row=0, rows=1, more=None):
    """A piece of this rank's ``to``: that of every rank's message, waited for, combined in rank order as in ``reduce_box``.

    Args:
        to: neighbouring elements of this rank. inbox, number, count, call, arrived: as in ``send_packets``. op: constant, "sum",
            "min" or "max". row, rows: as in ``send_packets``; the row is a slot of ``to`` and of ``more``.
        more: tensor of this rank whose piece is combined last, before rounding; None: there is none.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.sys.global.v2.b64 of several ranks in a loop bounded by %globaltimer, st.relaxed.sys.global.v2.b32.
    """
    size, parts = to.dtype.itemsize, []
    first, n = _piece(number, count, size)
    for source in range(inbox.world_size):
        arrived.wait(_number(arrived, source, number, row, rows), call)
        parts.append(read(inbox.span((_slot(inbox, source, count, call, row, rows) + first) * size, n)))
    if more is not None:
        parts.append(read(more.span(row * more.step + first * size, n)))
    write(to.span(row * to.step + first * size, n), combined(op, parts))


@reduce_packets.lowering
def _(to, inbox, number, count, call, arrived, op, row, rows, more):
    op, role, given = constant(op, "reduce_packets: op"), arrived.role, hasattr(more, "ident")
    need(op in OPS, f"reduce_packets: op = {op!r}. It must be one of {', '.join(OPS)}.")
    u = Units("reduce_packets", to.dtype)

    def emit(p, to_at, inbox_at, number, count, call, _, __, row, rows, more_at):
        own, world = p.tensor(inbox_at, "pointer", "world")
        shared, (group, left, groups) = p.shared_base(), _group(p, u, number, count)

        def packets(first):
            """[(whether there is such a source, its values)] of AHEAD sources; the first stands for those beyond the last."""
            ranks = [p.b.add(first, p.const(i)) for i in range(AHEAD)]
            inside = [p.b.icmp_unsigned("<", r, world) for r in ranks]
            ranks = [p.b.select(here, r, first) for here, r in zip(inside, ranks)]
            places = [p.b.add(own, _packet(p, call, world, r, groups, group, row, rows)) for r in ranks]
            return list(zip(inside, (u.values(p, words) for words in await_packets(p, role, arrived, shared, places, ranks, call))))

        with p.when(p.b.icmp_signed(">", left, p.const(0))):
            (_, values), *rest = packets(p.const(0))
            total = u.variable(p, len(values))
            p.b.store(p.pack(_add(p, u, op, values, rest)), total)
            for turn in p.loop(p.b.udiv(p.b.sub(world, p.const(1)), p.const(AHEAD))):
                found = packets(p.scale(p.b.add(turn, p.const(1)), AHEAD))
                p.b.store(p.pack(_add(p, u, op, p.elements(p.b.load(total)), found)), total)
            sums = p.elements(p.b.load(total))
            if given:
                own_words = _load(p, u, more_at, _data(p, u, more_at, row, group), left)
                sums = [u.combine(p, op, a, b) for a, b in zip(sums, u.values(p, own_words))]
            _store(p, u, to_at, _data(p, u, to_at, row, group), left, u.words(p, sums))
    return emit


def await_packets(p, role, arrived, shared, places, ranks, call):
    """The words of the packets at several addresses, from as many ranks, once all of them carry the number of the call."""
    n, want = len(places), f"${4 * len(places) + 2}"
    lines = [f"ld.relaxed.sys.global.v2.b64 {{x{i}, y{i}}}, [${3 * n + 2 + i}];" for i in range(n)]
    for i in range(n):
        flag, others = f"${2 * n + 1 + i}", ".and" if i else ""         # the flag that is not there yet, if one is not
        lines.append(f"mov.b64 {{${2 * i + 1}, f}}, x{i}; mov.b64 {{${2 * i + 2}, h}}, y{i}; setp.eq.u32 r, h, {want}; "
                     f"selp.b32 {flag}, f, h, r; setp.eq{others}.u32 p, {flag}, {want}{', p' if i else ''};")
    done, *found = p.spin(" ".join(lines), shared, *places, call, declare=f".reg .u64 x<{n}>, y<{n}>; .reg .u32 f, h; .reg .pred r;",
                          seen=3 * n)
    with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
        source, seen = ranks[0], found[2 * n]
        for rank, flag in zip(ranks[1:], found[2 * n + 1:]):
            late = p.b.icmp_unsigned("==", seen, call)
            source, seen = p.b.select(late, rank, source), p.b.select(late, flag, seen)
        p.give_up(role, p.COUNTER + (arrived.number << 8), source, call, seen, shared)
    return [found[2 * i:2 * i + 2] for i in range(n)]


def _add(p, u, op, values, found):
    """values, combined with those of the packets that there are."""
    for inside, more in found:
        values = [p.b.select(inside, u.combine(p, op, a, b), a) for a, b in zip(values, more)]
    return values


def _data(p, u, tensor_at, row, group):
    """Address of a group of 8 bytes in a row of a tensor."""
    return p.b.add(u.base(p, tensor_at, row), p.b.mul(p.wide(group), p.const(DATA, p.i64)))


def _group(p, u, number, count):
    """(the lane's 8 bytes of data by number, elements of it inside (possibly none or more than it has), how many there are)."""
    width = DATA // u.itemsize
    group = p.b.add(p.lane(), p.scale(number, 32))
    return group, p.b.sub(count, p.scale(group, width)), p.b.udiv(p.b.add(count, p.const(width - 1)), p.const(width))


def _packet(p, call, world, source, groups, group, row, rows):
    """Bytes from an inbox's start to the packet of a source."""
    slot = p.b.add(p.b.mul(p.b.and_(call, p.const(1)), world), source)
    line = p.b.add(p.b.mul(slot, rows), row)
    return p.b.mul(p.b.add(p.b.mul(p.wide(line), p.wide(groups)), p.wide(group)), p.const(16, p.i64))


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
