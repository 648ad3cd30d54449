"""Packets: 12 bytes of data and the number of the call in one store of 16 bytes, which nothing parts.

Whoever finds the number has the data, so there is no fence, no signal and no second trip. A rank has an inbox of two halves, for calls of
even and of odd numbers, with a slot for each source: a half is written again only after its readers have sent what they send in the next
call, which they do after having read it.

A lane has three units of 16 bytes of a piece: twelve words, in four packets. A warp's first packets lie together, then its second ones, and
so on: it writes and reads whole lines.
"""

#: Units of a lane, and the packets that they are; units of a piece; bytes of a piece in an inbox.
UNITS, PACKETS = 3, 4
PIECE, PIECE_BYTES = 32 * UNITS, 32 * PACKETS * 16


def inside(p, left):
    """Of each packet of a lane whose units have ``left`` elements in the box: whether it carries any, so is sent and waited for."""
    return [p.b.icmp_unsigned(">", left[3 * j // 4], p.const(0)) for j in range(PACKETS)]


def packet_place(p, call, world, source, pieces, number, row, rows):
    """Bytes from an inbox's start to the lane's first packet of a piece from a source. pieces: of a row."""
    b = p.b
    slot = b.add(b.mul(b.and_(call, p.const(1)), world), source)
    piece = b.add(b.mul(p.wide(b.add(b.mul(slot, rows), row)), p.wide(pieces)), p.wide(number))
    return b.add(b.mul(piece, p.const(PIECE_BYTES, p.i64)), p.wide(p.scale(p.lane(), 16)))


def store_packets(p, address, words, call, carries):
    """Twelve words as four packets, those that carry something."""
    for j, some in enumerate(carries):
        p("{ .reg .pred p; .reg .b64 x, y; .reg .b128 q; setp.ne.u32 p, $5, 0; mov.b64 x, {$1, $2}; mov.b64 y, {$3, $4}; "
          f"mov.b128 q, {{x, y}}; @p st.relaxed.sys.global.b128 [$0+{512 * j}], q; }}",
          address, *words[3 * j:3 * j + 3], call, p.b.zext(some, p.i32))


def await_packets(p, arrived, shared, places, wanted, ranks, call):
    """The twelve words of each of several sources, once all packets of theirs that are wanted carry the number of the call.

    Args:
        places: addresses of the lane's first packets. wanted: for each source, of each packet whether it comes. ranks: of the sources.
    """
    n, many = len(places), PACKETS * len(places)
    seen = 13 * n                                           # of a source twelve words, then a number that is not the call's, if one is not
    first = seen + 2                                        # after the base that the loop needs: places, wanted, call
    want, lines = f"${first + n + many}", []
    start = [f".reg .b128 q<{many}>; .reg .b64 x, y; .reg .u32 f; .reg .pred r, w<{many}>; mov.b64 x, 0;"]
    for k in range(many):
        start.append(f"mov.b128 q{k}, {{x, x}}; setp.ne.u32 w{k}, ${first + n + k}, 0;")
        lines.append(f"@w{k} ld.relaxed.sys.global.b128 q{k}, [${first + k // PACKETS}+{512 * (k % PACKETS)}];")
    for i in range(n):
        late = f"${13 * i + 13}"
        lines.append(f"mov.u32 {late}, {want};")
        for j in range(PACKETS):
            k, word = PACKETS * i + j, 13 * i + 3 * j + 1
            lines.append(f"mov.b128 {{x, y}}, q{k}; mov.b64 {{${word}, ${word + 1}}}, x; mov.b64 {{${word + 2}, f}}, y; "
                         f"selp.b32 f, f, {want}, w{k}; setp.eq.u32 r, {late}, {want}; selp.b32 {late}, f, {late}, r;")
        lines.append(f"setp.eq{'.and' if i else ''}.u32 p, {late}, {want}{', p' if i else ''};")
    flags = [p.b.zext(some, p.i32) for each in wanted for some in each]
    done, *found = p.spin(" ".join(lines), shared, *places, *flags, call, declare=" ".join(start), seen=seen)
    with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
        source, number = ranks[0], found[12]
        for rank, late in zip(ranks[1:], found[25::13]):
            missing = p.b.not_(p.b.icmp_unsigned("==", number, call))
            source, number = p.b.select(missing, source, rank), p.b.select(missing, number, late)
        p.give_up(arrived.role, p.COUNTER + (arrived.number << 8), source, call, number, shared)
    return [found[13 * i:13 * i + 12] for i in range(n)]
