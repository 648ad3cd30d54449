"""Register tiles in global memory, for blocks that each have a part of a sum: each keeps a share of the columns and leaves the others.

A tile lies there as blocks of 64 rows and 8 columns, each contiguous in wgmma's order: a thread moves 16 bytes, a warp 512 that follow
each other, and what one thread wrote the same thread of another block reads. Only these primitives know the order.

Every word is its own flag, so there is no fence, no signal and no second trip: memory that nobody has written is full of a bit pattern
that is never stored, and who reads a word puts that back. So it is between calls, whichever shape they have.
"""

import numpy as np

from ..interpreter import Accumulator, read, values, write
from ..lowering import accumulator_type, constant, is_accumulator, need, primitive

#: Bytes of a block of 64 x 8: 16 for each thread. Loads of a thread that are on their way at once, for small tiles and for large ones.
_BLOCK, _FLYING = 2048, (16, 4)
#: What lies where nothing has been written: a NaN that no instruction makes. The largest word that is stored in its place.
EMPTY, _FULL = 0xffffffff, 0xfffffffe


def _place(p, tensor_at, number, acc):
    """Address of this thread's part of the first block of a tile."""
    start, = p.tensor(tensor_at, "pointer")
    tile = p.b.mul(p.wide(number), p.const(4 * acc.rows * acc.cols, p.i64))
    return p.b.add(p.b.add(start, tile), p.wide(p.scale(p.thread(), 16)))


def _blocks(acc, shares, share=0):
    """Numbers of the blocks of a share."""
    width = acc.cols // 8 // shares
    return [m * acc.cols // 8 + share * width + j for m in range(acc.rows // 64) for j in range(width)]


def _check(name, tensor, acc, shares):
    n = constant(shares, f"{name}: shares")
    need(is_accumulator(acc) and tensor.dtype == "float32", f"{tensor.role.name}: {name} of {acc} in {tensor.ident} ({tensor.dtype}). It "
         "takes a register tile and memory of float32.")
    need(n >= 1 and acc.cols % (8 * n) == 0, f"{tensor.role.name}: {name} of {acc} in {n} shares. A share is a multiple of 8 columns.")
    return n


@primitive(scope="warpgroup")
def store_shares(tensor, number, acc, shares, own, left):
    """Tile ``number`` of ``tensor`` = acc, but for the columns of share ``own``: for workers that call ``reduce_shares``.

    Args:
        tensor: ``g.name``, float32, contiguous: tiles of acc's shape one after the other, empty.
        number: of the tile. acc: register tile, after ``mma_wait(acc, 0)`` if it was multiplied.
        shares: constant; each is a multiple of 8 columns. own: which this worker keeps, any other number if it keeps none.
        left: counters that stand for the words' flags on the interpreter, a number for each tile.

    PTX: min.u32, st.relaxed.gpu.global.v4.b32.
    """
    cols = acc.cols // shares
    for share in range(shares):
        if share != own:
            write(tensor.window((number, share), (acc.rows, cols)), values(acc)[:, share * cols:(share + 1) * cols])
    left.add(left.rank, number)


@store_shares.lowering
def _(tensor, number, acc, shares, own, left):
    n = _check("store_shares", tensor, acc, shares)
    words = " ".join(f"min.u32 v{i}, ${i + 1}, {_FULL};" for i in range(4))
    text = f"{{{{ .reg .b32 v<4>; {words} st.relaxed.gpu.global.v4.b32 [$0+{{}}], {{{{v0, v1, v2, v3}}}}; }}}}"

    def emit(p, tensor_at, number, acc_v, _, own, __):
        at, elements = _place(p, tensor_at, number, acc), p.elements(acc_v)
        for share in range(n):
            with p.when(p.b.not_(p.b.icmp_unsigned("==", own, p.const(share)))):
                for i in _blocks(acc, n, share):
                    p(text.format(_BLOCK * i), at, *(p.b.bitcast(x, p.i32) for x in elements[4 * i:4 * i + 4]))
    return emit


@primitive(scope="warpgroup")
def reduce_shares(acc, tensor, first, step, count, shares, own, left):
    """Share ``own`` of the sum of ``count`` register tiles, of which the own-th is acc and the others are left in ``tensor``, waited for.

    Added in float32, acc first, then the next tiles in order and around: the result has the same bits each time. What was read is empty
    again.

    Args:
        acc: register tile of this worker, which has called ``store_shares``. tensor: as there.
        first, step: the i-th tile lies at first + i * step. count, shares: constants, count a power of two. own: number of this worker's
            tile and share. left: as in ``store_shares``.

    Returns: register tile [rows, columns / shares].

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.gpu.global.v4.b32 in a loop bounded by %globaltimer, add.f32, st.relaxed.gpu.global.v4.b32.
    """
    cols, call = acc.cols // shares, left.value(first + own * step)
    total = values(acc)[:, own * cols:(own + 1) * cols]
    for i in range(1, count):
        number = first + (own + i) % count * step
        left.wait(number, call)
        there = tensor.window((number, own), (acc.rows, cols))
        total = total + read(there)
        write(there, np.float32("nan"))
    return Accumulator.of(total)


@reduce_shares.lowering
def _(acc, tensor, first, step, count, shares, own, left):
    n, tiles = _check("reduce_shares", tensor, acc, shares), constant(count, "reduce_shares: count")
    need(tiles & tiles - 1 == 0, f"{tensor.role.name}: reduce_shares of {tiles} tiles. They are counted around. Use a power of two.")
    total, blocks, size = accumulator_type(acc.rows, acc.cols // n), _blocks(acc, n), 4 * acc.rows * acc.cols
    flying = _FLYING[acc.size > 64]

    def emit(p, acc_v, tensor_at, first, step, _, __, own, ___):
        b, sums, base = p.b, _kept(p, p.elements(acc_v), acc, n, own), p.shared_base()
        at = b.add(_place(p, tensor_at, first, acc), p.wide(p.scale(own, acc.cols // 8 // n * _BLOCK)))
        order = [(i, j) for i in range(1, tiles) for j in range(len(blocks))]
        for k in range(0, len(order), flying):
            some, places = order[k:k + flying], {}
            for i in sorted({i for i, _ in some}):
                number = b.mul(b.and_(b.add(own, p.const(i)), p.const(tiles - 1)), step)
                places[i] = b.add(at, b.mul(p.wide(number), p.const(size, p.i64))), b.add(first, number)
            found = _await(p, left, base, [(places[i][0], _BLOCK * blocks[j]) for i, j in some], places[some[0][0]][1])
            for (_, j), words in zip(some, found):
                for e, word in enumerate(words):
                    sums[4 * j + e] = b.fadd(sums[4 * j + e], b.bitcast(word, p.f32))
        return p.pack(sums)
    return total, emit


def _await(p, left, base, places, number):
    """The four words at each of some (address, offset), once none of them is empty; they are empty then. ``number``: of a tile that is
    waited for, for the record."""
    n = len(places)
    words = [[f"${1 + 4 * i + e}" for e in range(4)] for i in range(n)]
    poll = [f"ld.relaxed.gpu.global.v4.b32 {{{', '.join(w)}}}, [${4 * n + 2 + i}+{places[i][1]}];" for i, w in enumerate(words)]
    for i, w in enumerate(words):
        poll.append(f"max.u32 m{i}, {w[0]}, {w[1]}; max.u32 h, {w[2]}, {w[3]}; max.u32 m{i}, m{i}, h;")
    poll += [*(f"max.u32 m0, m0, m{i};" for i in range(1, n)), f"setp.ne.u32 p, m0, {EMPTY};"]
    # lanes go on together: after a loop that they leave one by one, the assembler would take what follows for divergent
    done, *found = p.spin(" ".join(poll), base, *(at for at, _ in places), declare=f".reg .b32 m<{n}>, h;", seen=4 * n, warp=True)
    with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
        p.give_up(left.role, p.COUNTER + (left.number << 8), number, p.const(1), p.const(0), base)
    for at, offset in places:
        p(f"{{ .reg .b32 e; mov.b32 e, {EMPTY}; st.relaxed.gpu.global.v4.b32 [$0+{offset}], {{e, e, e, e}}; }}", at)
    return [found[4 * i:4 * i + 4] for i in range(n)]


def _kept(p, elements, acc, shares, own):
    """The elements of acc in share ``own``: registers have no index."""
    if shares == 1:
        return elements
    count = len(elements) // shares
    slot = p.variable(p.array(p.f32, count), [0.0] * count)
    for share in p.switch(own, shares):
        p.b.store(p.pack([x for i in _blocks(acc, shares, share) for x in elements[4 * i:4 * i + 4]]), slot)
    return p.elements(p.b.load(slot))
