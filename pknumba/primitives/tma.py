"""Bulk copies between global and shared memory, by the copy engine (TMA). Coordinates count tiles of the moved shape.

A moved tile is ``prod(leading) * rows`` rows of ``cols`` columns. Coordinates before the last two count matrices, of an array of
them. What lies beyond a matrix's edge is read as zero and not written, so a coordinate may point to a partial tile or past the end;
but a store writes pieces of 16 bytes, and the one that the last column cuts is written whole, so rows that do not end on 16 bytes
must own the rest of their piece. Loads complete on a semaphore; stores are counted by the thread that issued them:
``store_async_read_wait`` says that the shared tile may be reused, ``store_async_wait`` that the data are in global memory, which is
what a signal needs.
"""

from math import prod

from ..interpreter import current, transfer
from ..interpreter import fence_async as _fence
from ..lowering import BEYOND, constant, insist, need, primitive


def _boxes(tensor, tile, blocks=1):
    """Cut a tile, or the first share of one whose rows ``blocks`` blocks share, into boxes that one instruction moves: [(byte offset,
    row, column)], and the box (rows, columns)."""
    lead, span = prod(tile.shape[:-2]), tile.rows * tile.panel * tile.itemsize
    need(len(tile.shape) >= 2, f"{tile.role.name}: {tile} is no tile.")
    need(tensor.dtype == tile.dtype, f"{tile.role.name}: moves {tensor.ident} ({tensor.dtype}) and {tile} ({tile.dtype}). "
         "A bulk copy does not convert. Declare the tile with the tensor's dtype.")
    rows = tile.rows * lead if tile.panels == 1 and tile.rows * lead <= 256 else tile.rows
    need(rows <= 256, f"{tile.role.name}: moves {tile} at once. A box has up to 256 rows. Use a smaller tile.")
    rows //= blocks
    outer = range(0, lead * tile.rows // blocks, rows)
    return [(r * tile.cols * tile.itemsize + i * span, r, i * tile.panel) for r in outer for i in range(tile.panels)], (rows, tile.panel)


def _map(p, tensor_at, tensor, tile, box, peer):
    """Address of the tensor map of this rank's tensor, or of a peer's."""
    return p.tensor_map(tensor_at, tensor, box, tile.swizzle) if peer is None else p.peer_map(tensor_at, tensor, box, tile.swizzle, peer)


def _check(p, tensor, tensor_at, tile, row, col, peer=None, load=False):
    """In a debug build: the window starts in the array, or, for a store, not far behind it; the peer exists."""
    def end(what):
        return lambda: p.b.add(*p.tensor(tensor_at, what), p.const(BEYOND))

    anywhere = p.const(0x7FFFFFFF)                          # a peer's part may have more rows than this rank's
    insist(p, tile.role, f"first row of a window of {tensor.ident}", row, end("rows") if peer is None and not load else anywhere)
    insist(p, tile.role, f"first column of a window of {tensor.ident}", col, anywhere if load else end("cols"))
    if peer is not None:
        insist(p, tile.role, f"rank whose {tensor.ident} is moved", peer, lambda: p.tensor(tensor_at, "world")[0])


def _places(first, coord):
    """(rank of the tensor, text of the operands from $first on that are its coordinates)."""
    rank = len(coord)
    return rank, "{" + ", ".join(f"${first + i}" for i in range(rank)) + "}"


def _store(what, tensor, coord, tile):
    boxes, box = _boxes(tensor, tile)
    rank, places = _places(2, coord)
    text = f"cp{what[0]}.async.bulk.tensor.{rank}d.global.shared::cta{what[1]}.tile.bulk_group [$0, {places}], [$1];"

    def emit(p, tensor_at, coord, tile_at, peer):
        *outer, row, col = coord
        row, col = p.scale(row, prod(tile.shape[:-1])), p.scale(col, tile.cols)
        _check(p, tensor, tensor_at, tile, row, col, peer)
        map_at = _map(p, tensor_at, tensor, tile, box, peer)
        for offset, r, c in boxes:
            p(text, map_at, p.b.add(tile_at, p.const(offset)), p.b.add(col, p.const(c)), p.b.add(row, p.const(r)), *reversed(outer))
        p("cp.async.bulk.commit_group;")
    return emit


def _combine(op, tensor, coord, tile):
    """A store that combines with what lies there."""
    need(op == "add" or tile.dtype != "float32", f"{tile.role.name}: store_{op}_async of float32. The copy engine has min and max for "
         "16-bit floats.")
    return _store((".reduce", f".{op}"), tensor, coord, tile)


@primitive(scope="thread")
def load_async(tile, tensor, coord, sem, first_row=0, first_col=0, peer=None):
    """Start tile = tensor[coord]; its bytes complete on ``sem`` (announced by ``expect``).

    Args:
        tile: shared tile (..., rows, columns) of the tensor's dtype.
        tensor: global memory ``g.name`` (M, N), or (..., M, N).
        coord: (row, column) counted in tiles of this shape; (..., row, column) of an array of matrices.
        sem: the semaphore whose ``wait`` makes the tile readable.
        first_row, first_col: row and column of the tensor that coordinate (0, 0) stands for; the column is a multiple of 16 bytes (the
            device gives up with an illegal instruction, the interpreter raises ProtocolError).
        peer: rank whose memory is read; None: this rank's.

    PTX: cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.
    """
    transfer("load_async", tensor.window(coord, tile.shape, peer, first_row, first_col=first_col), tile, completes=sem)


@load_async.lowering
def _(tile, tensor, coord, sem, first_row, first_col, peer):
    boxes, box = _boxes(tensor, tile)
    rank, places = _places(3, coord)
    text = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {places}], [$2];"

    def emit(p, tile_at, tensor_at, coord, sem_at, first, first_col, peer):
        *outer, row, col = coord
        row, col = p.b.add(p.scale(row, prod(tile.shape[:-1])), first), p.b.add(p.scale(col, tile.cols), first_col)
        _check(p, tensor, tensor_at, tile, row, col, peer, load=True)
        map_at = _map(p, tensor_at, tensor, tile, box, peer)
        for offset, r, c in boxes:
            p(text, p.b.add(tile_at, p.const(offset)), map_at, sem_at, p.b.add(col, p.const(c)), p.b.add(row, p.const(r)), *reversed(outer))
    return emit


@primitive(scope="thread")
def prefetch(tile, tensor, coord, first_row=0):
    """Ask for tensor[coord] to come to the L2, nearer to a later ``load_async`` with the same arguments.

    Nothing waits for it and no result depends on it: it may be asked for before it is written.

    Args:
        tile, tensor, coord, first_row: as of ``load_async``; the tile is not touched.

    PTX: cp.async.bulk.prefetch.tensor.2d.L2.global.tile.
    """


@prefetch.lowering
def _(tile, tensor, coord, first_row):
    boxes, box = _boxes(tensor, tile)
    rank, places = _places(1, coord)
    text = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [$0, {places}];"

    def emit(p, _, tensor_at, coord, first):
        *outer, row, col = coord
        row, col = p.b.add(p.scale(row, prod(tile.shape[:-1])), first), p.scale(col, tile.cols)
        map_at = p.tensor_map(tensor_at, tensor, box, tile.swizzle)
        for _, r, c in boxes:
            p(text, map_at, p.b.add(col, p.const(c)), p.b.add(row, p.const(r)), *reversed(outer))
    return emit


@primitive(scope="thread")
def store_async(tensor, coord, tile, peer=None):
    """Start tensor[coord] = tile, as a bulk group of this thread.

    Args:
        tensor: global memory ``g.name`` (M, N), or (..., M, N).
        coord: (row, column) counted in tiles of this shape; (..., row, column) of an array of matrices.
        tile: shared tile (..., rows, columns) of the tensor's dtype, visible to the copy engine (``fence_async`` by its
            writers before they arrived).
        peer: rank whose memory is written; None: this rank's.

    PTX: cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group, cp.async.bulk.commit_group.
    """
    transfer("store_async", tile, tensor.window(coord, tile.shape, peer))


@store_async.lowering
def _(tensor, coord, tile, peer):
    return _store(("", ""), tensor, coord, tile)


@primitive(scope="thread")
def store_add_async(tensor, coord, tile, peer=None):
    """Start tensor[coord] += tile, element by element and atomically, rounded to the tensor's dtype at each addition.

    Args:
        tensor, coord, tile, peer: as in ``store_async``.

    PTX: cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.
    """
    transfer("store_add_async", tile, tensor.window(coord, tile.shape, peer), combine="add")


@store_add_async.lowering
def _(tensor, coord, tile, peer):
    return _combine("add", tensor, coord, tile)


@primitive(scope="thread")
def store_min_async(tensor, coord, tile, peer=None):
    """Start tensor[coord] = min(tensor[coord], tile), element by element and atomically. Not for float32.

    Args:
        tensor, coord, tile, peer: as in ``store_async``.

    PTX: cp.reduce.async.bulk.tensor.2d.global.shared::cta.min.tile.bulk_group.
    """
    transfer("store_min_async", tile, tensor.window(coord, tile.shape, peer), combine="min")


@store_min_async.lowering
def _(tensor, coord, tile, peer):
    return _combine("min", tensor, coord, tile)


@primitive(scope="thread")
def store_max_async(tensor, coord, tile, peer=None):
    """Start tensor[coord] = max(tensor[coord], tile), element by element and atomically. Not for float32.

    Args:
        tensor, coord, tile, peer: as in ``store_async``.

    PTX: cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group.
    """
    transfer("store_max_async", tile, tensor.window(coord, tile.shape, peer), combine="max")


@store_max_async.lowering
def _(tensor, coord, tile, peer):
    return _combine("max", tensor, coord, tile)


@primitive(scope="thread")
def store_async_read_wait(pending=0):
    """Until all but the last ``pending`` stores of this thread have *read* their tile: it may be overwritten.

    Args:
        pending: constant.

    The data need not be in global memory yet, so a signal after this alone is a race.

    PTX: cp.async.bulk.wait_group.read.
    """
    current().stores.wait(pending, "read")


@store_async_read_wait.lowering
def _(pending):
    text = f"cp.async.bulk.wait_group.read {constant(pending, 'store_async_read_wait: pending')};"
    return lambda p, _: p(text)


@primitive(scope="thread")
def store_async_wait(pending=0):
    """Until all but the last ``pending`` stores of this thread are *written*, and ordered before what it does next.

    Args:
        pending: constant.

    PTX: cp.async.bulk.wait_group, fence.proxy.async (the copy engine's writes before this thread's signal).
    """
    current().stores.wait(pending, "written")


@store_async_wait.lowering
def _(pending):
    text = f"cp.async.bulk.wait_group {constant(pending, 'store_async_wait: pending')}; fence.proxy.async;"
    return lambda p, _: p(text)


@primitive(scope=("thread", "warp", "warpgroup"))
def fence_async(tile):
    """Every ordinary store of this worker to ``tile`` becomes visible to the copy engine and to wgmma; the worker's threads meet.

    Args:
        tile: the shared tile that was written (names the worker's scope; the fence covers all of shared memory).

    PTX: fence.proxy.async.shared::cta in every thread, then bar.sync of the worker.
    """
    _fence(tile)


@fence_async.lowering
def _(tile):
    def emit(p, tile_at):
        p("fence.proxy.async.shared::cta;")
        p.sync_worker(tile.role)
    return emit
