"""Tiles gathered from rows that lie anywhere in a matrix, by the warps of a role: 16 bytes a lane, copied while the warp goes on.

The copy engine of sm_90 takes boxes of neighbouring rows only. These copies are asked for by ordinary threads and write shared memory as
ordinary stores do, later. They complete on a semaphore (``arrive_gathered``); whoever has waited for it and reads them by wgmma or the copy
engine calls ``fence_gathered`` first. So the warps that gather wait for nothing but room: a fence of theirs would wait for all they
have asked for.

Two warps share the rows of a tile, so that together they move 8 rows of 128 bytes at a time: what a 128-byte swizzle repeats after.
"""

from math import prod

from ..interpreter import current, read
from ..interpreter import fence_gathered as _fence
from ..interpreter import gather as _gather
from ..lowering import integers_type, need, primitive
from ..tiles import ITEMSIZE
from .semaphore import _arrives

#: Warps that share a tile; bytes of a swizzle span, and of what a lane copies at once.
WARPS, SPAN, UNIT = 2, 128, 16


def _check(name, tile):
    rows = prod(tile.shape[:-1])
    need(rows % (32 * WARPS) == 0, f"{tile.role.name}: {name} of {tile}, which has {rows} rows. Lanes of two warps keep their "
         "numbers. Use a multiple of 64.")
    need(tile.role.workers == WARPS and tile.role.scope == "warp", f"{tile.role.name}: {name} by {tile.role.workers} workers, each a "
         f"{tile.role.scope}. Two warps share the rows of a tile. Declare the role with two workers.")
    need(tile.swizzle == SPAN, f"{tile.role.name}: {name} of {tile} with a swizzle of {tile.swizzle} bytes. Lanes place 16 bytes each in "
         "spans of 128. Declare the tile with swizzle 128.")


def _worker(p):
    """Which of the two warps this is."""
    return p("{ .reg .u32 t; mov.u32 t, %tid.x; bfe.u32 $0, t, 5, 1; }", out=[p.i32], pure=True)


def _quotients(p, values, divisor):
    """Each of these, 0 to 2^31 - 1, by one divisor: two multiplications each, and one division for all of them."""
    b, found = p.b, []
    high = p.wide(b.udiv(p.const(-1), divisor))                 # 2^32 / divisor, less than 2 below: a quotient is at most 1 too small
    for value in values:
        low = b.trunc(b.lshr(b.mul(p.wide(value), high), p.const(32, p.i64)), p.i32)
        rest = b.sub(value, b.mul(low, divisor))
        found.append(b.select(b.icmp_unsigned(">=", rest, divisor), b.add(low, p.const(1)), low))
    return found


@primitive(scope="warp")
def sources(tile, table, first, end, each):
    """Of this warp's share of a tile's rows, which rows of a matrix they are: row r of the tile is row table[first + r] // each.

    Rows from ``end - first`` on are none. Which of the two warps has which rows is not said.

    Args:
        tile: a shared tile of the shape that is gathered. table: ``g.name``, a row of int32, not negative, that an earlier launch wrote.
        first, end: entries of the table that belong to the tile. each: integer, at least 1.

    Returns: what ``gather_async`` takes: numbers of rows, -1 for none.

    PTX: ld.global.b32, mul.wide.u32, mad.lo.
    """
    rows, part = prod(tile.shape[:-1]) // WARPS, current().part
    start, stop = int(first) + part * rows, min(int(first) + (part + 1) * rows, int(end))
    before = start % 4                                          # a window begins on 16 bytes
    values = read(table.window((0, 0), (1, max(stop - start, 0) + before), first_col=start - before))[0, before:] if start < stop else ()
    return tuple(int(x) // int(each) for x in values) + (-1,) * (rows - len(values))


@sources.lowering
def _(tile, table, first, end, each):
    _check("sources", tile)
    n = prod(tile.shape[:-1]) // (32 * WARPS)
    text = "{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }"

    def emit(p, tile_at, table_at, first, end, each):
        b, (start,) = p.b, p.tensor(table_at, "pointer")
        mine = b.add(b.add(b.shl(b.lshr(p.lane(), p.const(2)), p.const(3)), b.shl(_worker(p), p.const(2))), b.and_(p.lane(), p.const(3)))
        numbers = [b.add(b.add(first, mine), p.const(32 * WARPS * i)) for i in range(n)]
        inside = [b.icmp_signed("<", number, end) for number in numbers]
        found = [p(text, b.add(start, p.wide(b.shl(number, p.const(2)))), b.zext(there, p.i32), out=[p.i32])
                 for number, there in zip(numbers, inside)]
        return p.pack([b.select(there, row, p.const(-1)) for there, row in zip(inside, _quotients(p, found, each))])
    return integers_type(n), emit


@primitive(scope="warp")
def gather_async(tile, tensor, rows, col):
    """Start this warp's share of tile = these rows of a matrix, tile column ``col``.

    Rows that are none, and what lies beyond the matrix's last column, become zero.

    Args:
        tile: shared tile (..., rows, columns) of the tensor's dtype, with a swizzle of 128 bytes.
        tensor: ``g.name`` (M, N) of this rank, rows on 16 bytes, that an earlier launch wrote.
        rows: of ``sources``. col: integer, counted in tiles.

    The writes are ordinary ones that come later: ``arrive_gathered`` says when, ``fence_gathered`` shows them to wgmma.

    PTX: cp.async.cg.shared.global (16 bytes a lane, fewer or none read beyond the edge), shfl.sync.idx.
    """
    task, cols = current(), tile.shape[-1]
    share = tile.share(task.block, task.part, WARPS)
    _gather("gather_async", [None if row < 0 else tensor.window((row, col), (1, cols)) for row in rows], share)


@gather_async.lowering
def _(tile, tensor, rows, col):
    _check("gather_async", tile)
    size, (count, span), n = ITEMSIZE[tile.dtype], (tile.rows, tile.rows * SPAN), prod(tile.shape[:-1]) // 8
    need(tensor.dtype == tile.dtype and 8 * len(rows) == n, f"{tile.role.name}: gathers {len(rows)} rows of each lane from {tensor.ident} "
         f"({tensor.dtype}) into {tile} ({tile.dtype}). Rows are copied as they are. Use a tile of the tensor's dtype, and its sources.")
    # where the i-th 8 rows lie in the tile: its matrix, then the rows of a span
    places = [8 * i // count * count * tile.cols * size + 8 * i % count * SPAN for i in range(n)]

    def text(copy):
        each = "".join(f" add.u32 n, $3, {4 * i % 32}; shfl.sync.idx.b32 r, ${5 + i // 8}, n, 31, -1; mad.wide.u32 a, r, $2, $1; "
                       "setp.lt.s32 p, r, 0; " + copy.format(at=at) for i, at in enumerate(places))
        return "{ .reg .pred p; .reg .b32 n, r; .reg .b64 a;" + each + " }"
    whole = text("cp.async.cg.shared.global [$0+{at}], [a], 16, p;")
    partly = text("selp.b32 n, 0, $4, p; cp.async.cg.shared.global [$0+{at}], [a], 16, n;")

    def emit(p, tile_at, tensor_at, rows, col):
        b, (start, pitch, cols) = p.b, p.tensor(tensor_at, "pointer", "pitch", "cols")
        lane_row, piece = b.lshr(p.lane(), p.const(3)), b.and_(p.lane(), p.const(7))
        row = b.add(lane_row, b.shl(_worker(p), p.const(2)))
        at = b.add(b.add(tile_at, b.shl(row, p.const(7))), b.shl(b.xor(piece, row), p.const(4)))
        first, width = p.scale(col, tile.cols * size), p.scale(cols, size)
        for panel in range(tile.panels):
            here = b.add(b.add(first, p.const(panel * SPAN)), b.shl(piece, p.const(4)))
            given = b.add(at, p.const(panel * span)), b.add(start, p.wide(here)), b.trunc(pitch, p.i32), lane_row
            inside = b.icmp_signed("<=", b.add(first, p.const((panel + 1) * SPAN)), width)
            with p.when(inside, likely=True):
                p(whole, *given, p.const(0), *rows)
            with p.when(b.not_(inside), likely=False):          # the last columns: pieces that are cut take ten instructions each
                left = b.sub(width, here)
                left = b.select(b.icmp_signed("<", left, p.const(UNIT)), left, p.const(UNIT))
                p(partly, *given, b.select(b.icmp_signed(">", left, p.const(0)), left, p.const(0)), *rows)
    return emit


@primitive(scope="warp")
def arrive_gathered(sem):
    """One arrival of this worker (release, block scope), once all that it has gathered so far is written.

    Args:
        sem: one semaphore of this block, ``s.name[stage]``, on which this role arrives.

    The worker goes on at once.

    PTX: cp.async.mbarrier.arrive by every lane, which adds an arrival now and makes it when that lane's copies are written;
    bar.warp.sync, mbarrier.arrive.release.cta by one of them.
    """
    current().gathers.arrive(sem)


@arrive_gathered.lowering
def _(sem):
    _arrives(sem)
    need(sem.blocks == 1, f"{sem.role.name}: what is gathered completes on {sem.ident}, declared of=\"cluster\". It is this block's alone. "
         "Declare another semaphore.")

    def emit(p, sem_at):
        p("cp.async.mbarrier.arrive.shared::cta.b64 [$0]; bar.warp.sync 0xffffffff;", sem_at)
        with p.leader("warp"):
            p("mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];", sem_at)
    return emit


@primitive(scope=("thread", "warp", "warpgroup"))
def fence_gathered(tile):
    """What was gathered into ``tile``, and this worker has waited for, becomes visible to the wgmma and bulk copies that it issues.

    Args:
        tile: the shared tile (the fence covers all of shared memory).

    A fence on the way from the writes to the reads is what PTX asks for, whoever makes it. Ordinary stores are fenced by who wrote them
    (``fence_async``), since others arrive for them.

    PTX: fence.proxy.async.shared::cta in every thread.
    """
    _fence(tile)


@fence_gathered.lowering
def _(tile):
    return lambda p, tile_at: p("fence.proxy.async.shared::cta;")
