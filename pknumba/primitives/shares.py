"""Register tiles in global memory, for blocks that each have a part of a sum: each keeps a share of the columns and leaves the others.

A tile lies there as blocks of 64 rows and 8 columns, each contiguous in wgmma's order: a thread moves 16 bytes, a warp 512 that follow
each other, and what one thread wrote the same thread of another block reads. Only these primitives know the order.

Every word is its own flag, so there is no fence, no signal and no second trip: the lowest bit of a word is turned by each call that writes
it, so who needs a word loads it until that bit is what it is in this call. Calls that use the same memory write the same words, each once;
a worker finds the bit of its call in a word that only it writes. What is left so is at most 2^-23 smaller than it was, relatively.
"""

from itertools import pairwise

from ..interpreter import Accumulator, read, values, write
from ..lowering import Int, accumulator_type, constant, is_accumulator, need, primitive

#: Bytes of a block of 64 x 8: 16 for each thread. Loads of a thread that are on their way at once: 24 would spill.
_BLOCK, _FLYING = 2048, 16
#: All bits of a word but the one that is its flag.
_VALUE = 0xfffffffe


def _place(p, tensor_at, number, size):
    """Address of this thread's part of the first block of a tile of so many bytes."""
    start, = p.tensor(tensor_at, "pointer")
    tile = p.b.mul(p.wide(number), p.const(size, p.i64))
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
def shares_phase(tensor, number, rows, cols, shares, own, left):
    """The bit that words of this call have, for ``store_shares`` and ``reduce_shares``; best asked for long before.

    Args:
        tensor: ``g.name``, float32, contiguous: tiles one after the other, all bits of flags alike before the first call. number: of the
            tile that this worker will store. rows, cols: constants, of a tile. shares, own, left: as in ``store_shares``.

    Returns: int32, on the interpreter the number of the call.

    PTX: ld.relaxed.gpu.global.b32 of a word that this worker wrote in the last call.
    """
    return left.value(number) + 1


@shares_phase.lowering
def _(tensor, number, rows, cols, shares, own, left):
    acc = accumulator_type(constant(rows, "shares_phase: rows"), constant(cols, "shares_phase: cols"))
    n = _check("shares_phase", tensor, acc, shares)

    def emit(p, tensor_at, number, rows, cols, shares, own, left):
        b = p.b
        share = b.select(b.icmp_unsigned("<", own, p.const(n)), own, p.const(0))
        at = b.add(_place(p, tensor_at, number, 4 * acc.rows * acc.cols), p.wide(p.scale(share, acc.cols // 8 // n * _BLOCK)))
        word = p("ld.relaxed.gpu.global.b32 $0, [$1];", at, out=[p.i32])
        return b.xor(b.and_(word, p.const(1)), p.const(1))
    return Int, emit


@primitive(scope="warpgroup")
def store_shares(tensor, number, acc, shares, own, phase, left):
    """Tile ``number`` of ``tensor`` = acc, but for the columns of share ``own``: for workers that call ``reduce_shares``.

    Args:
        tensor: ``g.name``, float32, contiguous: tiles of acc's shape one after the other.
        number: of the tile. acc: register tile, after ``mma_wait(acc, 0)`` if it was multiplied.
        shares: constant; each is a multiple of 8 columns. own: which this worker keeps, any other number if it keeps none. Of that the
            first block is stored as well: by it the worker knows the next call.
        phase: of ``shares_phase``. left: counters that stand for the words' flags on the interpreter, a number for each tile.

    PTX: lop3.b32, st.relaxed.gpu.global.v4.b32.
    """
    cols = acc.cols // shares
    for share in range(shares):
        if share != own:
            write(tensor.window((number, share), (acc.rows, cols)), values(acc)[:, share * cols:(share + 1) * cols])
    left.add(left.rank, number)


@store_shares.lowering
def _(tensor, number, acc, shares, own, phase, left):
    n = _check("store_shares", tensor, acc, shares)
    words = " ".join(f"lop3.b32 v{i}, ${i + 1}, {_VALUE}, $5, 0xea;" for i in range(4))         # and, or
    text = f"{{{{ .reg .b32 v<4>; {words} st.relaxed.gpu.global.v4.b32 [$0+{{}}], {{{{v0, v1, v2, v3}}}}; }}}}"

    def emit(p, tensor_at, number, acc_v, _, own, phase, __):
        at, elements = _place(p, tensor_at, number, 4 * acc.rows * acc.cols), p.elements(acc_v)

        def put(i):
            p(text.format(_BLOCK * i), at, *(p.b.bitcast(x, p.i32) for x in elements[4 * i:4 * i + 4]), phase)
        for share in range(n):
            first, *more = _blocks(acc, n, share)
            put(first)
            with p.when(p.b.not_(p.b.icmp_unsigned("==", own, p.const(share)))):
                for i in more:
                    put(i)
    return emit


@primitive(scope="warpgroup")
def reduce_shares(acc, tensor, first, step, count, shares, own, phase, left):
    """Share ``own`` of the sum of ``count`` register tiles, of which the own-th is acc and the others are left in ``tensor``, waited for.

    Added in float32, acc first, then the next tiles in order and around: the result has the same bits each time.

    Args:
        acc: register tile of this worker, which has called ``store_shares``. tensor: as there.
        first, step: the i-th tile lies at first + i * step. count, shares: constants, count a power of two. own: number of this worker's
            tile and share. phase, left: as in ``store_shares``.

    Returns: register tile [rows, columns / shares].

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.relaxed.gpu.global.v4.b32 in a loop bounded by %globaltimer, lop3.b32, add.f32.
    """
    cols = acc.cols // shares
    total = values(acc)[:, own * cols:(own + 1) * cols]
    for i in range(1, count):
        number = first + (own + i) % count * step
        left.wait(number, phase)
        total = total + read(tensor.window((number, own), (acc.rows, cols)))
    return Accumulator.of(total)


@reduce_shares.lowering
def _(acc, tensor, first, step, count, shares, own, phase, left):
    n, tiles = _check("reduce_shares", tensor, acc, shares), constant(count, "reduce_shares: count")
    need(tiles & tiles - 1 == 0, f"{tensor.role.name}: reduce_shares of {tiles} tiles. They are counted around. Use a power of two.")
    total, blocks, size = accumulator_type(acc.rows, acc.cols // n), _blocks(acc, n), 4 * acc.rows * acc.cols

    def emit(p, acc_v, tensor_at, first, step, _, __, own, phase, ___):
        b, sums, base = p.b, _kept(p, p.elements(acc_v), acc, n, own), p.shared_base()
        at = b.add(_place(p, tensor_at, first, size), p.wide(p.scale(own, acc.cols // 8 // n * _BLOCK)))
        order, first_of_all = [(i, j) for i in range(1, tiles) for j in range(len(blocks))], _FLYING
        if tiles <= (16 if acc.size <= 64 and tensor.role.workers < 3 else 8):      # as many addresses as a thread has registers for
            # first a block of each tile, which says that the tile has come: the others are then asked for once
            order, first_of_all = sorted(order, key=lambda place: place[1]), tiles - 1
        for k, end in pairwise([0, *range(first_of_all, len(order), _FLYING), len(order)]):
            some, places = order[k:end], {}
            for i in sorted({i for i, _ in some}):
                number = b.mul(b.and_(b.add(own, p.const(i)), p.const(tiles - 1)), step)
                places[i] = b.add(at, b.mul(p.wide(number), p.const(size, p.i64))), b.add(first, number)
            found = _await(p, left, base, [(places[i][0], _BLOCK * blocks[j]) for i, j in some], phase, places[some[0][0]][1])
            for (_, j), words in zip(some, found):
                for e, word in enumerate(words, 4 * j):         # in place and in order: the optimizer would add last, and keep all words
                    sums[e] = p(f"{{ .reg .b32 v; and.b32 v, $2, {_VALUE}; add.f32 $0, $0, v; }}", word, tied=[sums[e]])
        return p.pack(sums)
    return total, emit


def _await(p, left, base, places, phase, number):
    """The four words at each of some (address, offset), once all of them are of this call. ``number``: of a tile that is waited for, for
    the record."""
    n = len(places)
    words = [[f"${1 + 4 * i + e}" for e in range(4)] for i in range(n)]
    poll = [f"ld.relaxed.gpu.global.v4.b32 {{{', '.join(w)}}}, [${4 * n + 2 + i}+{places[i][1]}];" for i, w in enumerate(words)]
    bit = f"${5 * n + 2}"
    poll.append("mov.b32 m, 0;")
    for w in words:             # a ^ c | b ^ c of both pairs: its lowest bit is set where one of the words is not of this call
        poll.append(f"lop3.b32 g, {w[0]}, {w[1]}, {bit}, 0x7e; lop3.b32 h, {w[2]}, {w[3]}, {bit}, 0x7e; lop3.b32 m, m, g, h, 0xfe;")
    poll.append("and.b32 m, m, 1; setp.eq.u32 p, m, 0;")
    # lanes go on together: after a loop that they leave one by one, the assembler would take what follows for divergent
    done, *found = p.spin(" ".join(poll), base, *(at for at, _ in places), phase, declare=".reg .b32 m, g, h;", seen=4 * n, warp=True,
                          soon=True)
    with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
        p.give_up(left.role, p.COUNTER + (left.number << 8), number, p.const(1), p.const(0), base)
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
