"""Rows of matrices carried by warps, between ranks or within one, and counters that say how many have come.

Rows lie on 16 bytes and own the rest of the 16 bytes in which they end: they move as whole units.
"""

import numpy as np

from ..interpreter import read, write
from ..lowering import need, primitive
from .halves import KIND
from .routing import _address as _entry, _integer, _looked_up
from .signal import _address, _peer
from .units import UNIT, Units

#: Units of 16 bytes that a lane moves at once: when it copies, and when it adds, of so many rows at a time.
_COPIES, _SUMS, _ROWS = 8, 4, 4


def _base(p, tensor_at, row, peer):
    """Address of a row of this rank's matrix, or of a peer's."""
    start, pitch = p.tensor(tensor_at, "pointer", "pitch")
    if peer is not None:
        table, = p.tensor(tensor_at, "peers")
        start = p.of_rank(table, peer)
    return p.b.add(start, p.b.mul(p.wide(row), pitch))


def _steps(p, tensor_at, itemsize, unroll):
    """``for offsets, inside in ...``: emit code for a lane's next ``unroll`` units of a row."""
    b, c = p.b, p.const
    cols, = p.tensor(tensor_at, "cols")
    units = b.udiv(b.add(p.scale(cols, itemsize), c(UNIT - 1)), c(UNIT))
    for step in p.loop(b.udiv(b.add(units, c(32 * unroll - 1)), c(32 * unroll))):
        mine = [b.add(b.add(p.scale(step, 32 * unroll), p.lane()), c(32 * i)) for i in range(unroll)]
        yield [p.wide(p.scale(unit, UNIT)) for unit in mine], [b.icmp_unsigned("<", unit, units) for unit in mine]


def _turns(p, count):
    """``for begin, left in ...``: emit code for 32 of ``count`` entries at a time, of which ``left`` are there from ``begin`` on."""
    for turn in p.loop(p.b.lshr(p.b.add(count, p.const(31)), p.const(5))):
        begin = p.scale(turn, 32)
        left = p.b.sub(count, begin)
        yield begin, p.b.select(p.b.icmp_unsigned("<", left, p.const(32)), left, p.const(32))


@primitive(scope="warp")
def carry(to, to_row, source, row, to_peer=None, peer=None):
    """Row ``to_row`` of rank ``to_peer``'s ``to`` = row ``row`` of rank ``peer``'s ``source``.

    Args:
        to, source: ``g.name`` (M, N) of one dtype and width. to_row, row: integers. to_peer, peer: ranks; None: this one.

    Raises ContractError for tensors of two dtypes.

    PTX: ld.relaxed.sys.global.v4.b32, st.relaxed.sys.global.v4.b32.
    """
    shape = 1, source.shape[-1]
    write(to.window((to_row, 0), shape, to_peer), read(source.window((row, 0), shape, peer)))


@carry.lowering
def _(to, to_row, source, row, to_peer, peer):
    need(to.dtype == source.dtype, f"{to.role.name}: carry from {source.ident} ({source.dtype}) to {to.ident} ({to.dtype}). Rows are "
         "copied as they are. Use tensors of one dtype.")
    u = Units("carry", to.dtype, _COPIES)

    def emit(p, to_at, to_row, source_at, row, to_peer, peer):
        here, there = _base(p, source_at, row, peer), _base(p, to_at, to_row, to_peer)
        for offsets, inside in _steps(p, source_at, u.itemsize, _COPIES):
            u.store(p, there, offsets, inside, u.load(p, here, offsets, inside))
    return emit


@primitive(scope="warp")
def spread(to, source, row, place, count):
    """Rows place[n] of ``to`` = row ``row`` of ``source``, for every i < count and n = count * row + i; nothing for those that are -1.

    Args:
        to, source: ``g.name``, rows of one dtype and width, of this rank. place: ``g.name``, int32. row, count: integers.

    Raises ContractError for tensors of two dtypes.

    PTX: ld.relaxed.sys.global.v4.b32, once; st.relaxed.sys.global.v4.b32 for each; a lane looks up each of 32 rows, shfl.sync.idx tells
    the others.
    """
    shape = 1, source.shape[-1]
    values = read(source.window((row, 0), shape))
    for at in map(int, read(place.window((0, row), (1, count)))[0]):
        if at >= 0:
            write(to.window((at, 0), shape), values)


@spread.lowering
def _(to, source, row, place, count):
    need(to.dtype == source.dtype, f"{to.role.name}: spread from {source.ident} ({source.dtype}) to {to.ident} ({to.dtype}). Rows are "
         "copied as they are. Use tensors of one dtype.")
    u = Units("spread", to.dtype, _COPIES)

    def emit(p, to_at, source_at, row, place_at, count):
        b, first = p.b, p.b.mul(row, count)
        here, (places,) = _base(p, source_at, row, None), p.tensor(place_at, "pointer")
        for offsets, inside in _steps(p, source_at, u.itemsize, _COPIES):
            words = u.load(p, here, offsets, inside)
            for begin, left in _turns(p, count):
                n = b.add(b.add(first, begin), p.lane())
                rows = _looked_up(p, _integer(p, places, n), b.icmp_unsigned("<", p.lane(), left), -1)
                for i in p.loop(left):
                    at = p("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", rows, i, out=[p.i32])
                    with p.when(b.icmp_signed(">=", at, p.const(0))):
                        u.store(p, _base(p, to_at, at, None), offsets, inside, words)
    return emit


@primitive(scope="warp")
def weigh(out, row, near, far, weights, place, count, limit):
    """Row ``row`` of ``out`` = sum over i < count of weights[n] * a row, n = count * row + i; nothing for those whose place[n] is -1.

    The row is row place[n] of ``near`` if that is below ``limit``, else row n of ``far``. The sum is made in float32 in the order of i and
    rounded once; of nothing it is 0.

    Args:
        out, near, far: ``g.name``, rows of one width, bfloat16 or float16, of this rank. weights, place: ``g.name``, float32 and int32.
        row, count, limit: integers.

    Raises ContractError for other dtypes.

    PTX: ld.relaxed.sys.global.v4.b32 of four rows before the first is added, fma.rn.f32, cvt.rn, st.relaxed.sys.global.v4.b32; a lane
    looks up each of 32 rows, shfl.sync.idx tells the others.
    """
    shape, total = (1, out.shape[-1]), np.zeros((1, out.shape[-1]), np.float32)
    w, places = read(weights.window((row, 0), (1, count))), read(place.window((0, row), (1, count)))[0]
    for i, at in enumerate(map(int, places)):
        if at >= 0:
            source = near.window((at, 0), shape) if at < limit else far.window((row * count + i, 0), shape)
            total = total + w[0, i] * read(source).astype(np.float32)
    write(out.window((row, 0), shape), total)


@weigh.lowering
def _(out, row, near, far, weights, place, count, limit):
    need(out.dtype == near.dtype == far.dtype and out.dtype in KIND and weights.dtype == "float32" and place.dtype == "int32",
         f"{out.role.name}: weigh of {near.ident} ({near.dtype}) and {far.ident} ({far.dtype}) by {weights.ident} ({weights.dtype}) into "
         f"{out.ident} ({out.dtype}). It takes bfloat16 or float16, float32 weights, int32 places.")
    u = Units("weigh", out.dtype, _SUMS)

    def emit(p, out_at, row, near_at, far_at, weights_at, place_at, count, limit):
        b = p.b
        first, there = b.mul(row, count), _base(p, out_at, row, None)
        for offsets, inside in _steps(p, out_at, u.itemsize, _SUMS):
            total = u.variable(p, _SUMS * u.width)
            for begin, left in _turns(p, count):
                rows = _weighed(p, b.add(first, begin), left, (near_at, far_at, weights_at, place_at), limit)
                for group in p.loop(b.udiv(b.add(left, p.const(_ROWS - 1)), p.const(_ROWS))):
                    _add_rows(p, u, rows, p.scale(group, _ROWS), offsets, inside, total)
            u.store(p, there, offsets, inside, u.words(p, p.elements(b.load(total))))
    return emit


def _weighed(p, number, left, tensors, limit):
    """(address of a row, its weight) of this lane's entry, counted from ``number`` on; (0, 0) for those that are dropped or no more."""
    b, (near_at, far_at, weights_at, place_at) = p.b, tensors
    n, mine = b.add(number, p.lane()), b.icmp_unsigned("<", p.lane(), left)
    at, weight = (_looked_up(p, _entry(p, tensor, n), mine, -1) for tensor in (place_at, weights_at))
    there = b.icmp_signed(">=", at, p.const(0))
    source = b.select(b.icmp_signed("<", at, limit), _base(p, near_at, at, None), _base(p, far_at, n, None))
    return b.select(there, source, p.const(0, p.i64)), b.select(there, weight, p.const(0))


def _add_rows(p, u, rows, first, offsets, inside, total):
    """Add the next rows times their weights, all of them loaded before."""
    b, (source, weight), words, weights = p.b, rows, [], []
    shuffles = " ".join(f"shfl.sync.idx.b32 {x}, {x}, $2, 31, -1;" for x in "lh")
    both = f"{{ .reg .b32 l, h; mov.b64 {{l, h}}, $1; {shuffles} mov.b64 $0, {{l, h}}; }}"
    for i in range(_ROWS):
        lane = b.add(first, p.const(i))                         # beyond the last row: one of address 0, which is none
        start = p(both, source, lane, out=[p.i64])
        weights.append(b.bitcast(p("shfl.sync.idx.b32 $0, $1, $2, 31, -1;", weight, lane, out=[p.i32]), p.f32))
        known = b.icmp_unsigned(">", start, p.const(0, p.i64))
        words.append(u.load(p, start, offsets, [b.and_(x, known) for x in inside]))
    sums = p.elements(b.load(total))
    for scale, row in zip(weights, words):
        sums = [p("fma.rn.f32 $0, $1, $2, $3;", scale, x, old, out=[p.f32], pure=True) for x, old in zip(u.values(p, row), sums)]
    b.store(p.pack(sums), total)


@primitive(scope=("thread", "warp"))
def post(counters, number, peer, n=1):
    """Everything this worker wrote, then n more on a counter of rank ``peer`` (release, system scope).

    Args:
        counters: ``g.name``; number: index of the counter; peer: rank; n: how much to add.

    PTX: fence.proxy.async in every thread, bar.warp.sync, fence.acq_rel.sys and red.relaxed.sys.global.add.u32 by one of them.
    """
    counters.add(peer, number, n)


@post.lowering
def _(counters, number, peer, n):
    def emit(p, counters_at, number, peer, n):
        p("fence.proxy.async;")
        p.sync_worker(counters.role)
        with p.leader(counters.role.scope):
            p("fence.acq_rel.sys; red.relaxed.sys.global.add.u32 [$0], $1;", _address(p, _peer(p, counters_at, peer), number), n)
    return emit
