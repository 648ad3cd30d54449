"""Groups of rows of a matrix, whose ends lie in memory: copies of tiles that end with their group, and integers of earlier
launches.

A group is rows ``first`` to ``end`` - 1 of a tensor. On the device its tensor map is ragged (``runtime.tensormap.RAGGED``): four
dimensions, in which a coordinate says where the rows end, so that the copy engine itself reads zero and writes nothing there.
"""

from math import prod

from ..interpreter import read, transfer
from ..lowering import Int, primitive
from .tma import _boxes

#: Rows of a ragged map, and its last coordinate (``runtime.tensormap``).
_MANY = 1 << 30


def _emit(p, coord, tile, boxes, first, end):
    """(byte offset in the tile, operands that are the coordinates) of every box of a tile."""
    row = p.b.add(p.scale(coord[0], prod(tile.shape[:-1])), p.b.sub(p.const(_MANY), p.b.sub(end, first)))
    col = p.scale(coord[1], tile.cols)
    for offset, r, c in boxes:
        yield p.const(offset), (p.b.add(col, p.const(c)), p.b.add(row, p.const(r)), end, p.const(_MANY))


@primitive(scope="thread")
def load_ragged_async(tile, tensor, coord, sem, first, end):
    """Start tile = rows of a group; its bytes complete on ``sem`` (announced by ``expect``). What lies beyond the group is zero.

    Args:
        tile, sem: as in ``load_async``. tensor: global memory ``g.name`` (M, N) with a ragged map.
        coord: (row, column) in the group, counted in tiles of this shape. first, end: rows of the tensor that the group has.

    PTX: cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.
    """
    transfer("load_ragged_async", tensor.window(coord, tile.shape, first_row=first, end_row=end), tile, completes=sem)


@load_ragged_async.lowering
def _(tile, tensor, coord, sem, first, end):
    boxes, box = _boxes(tensor, tile)
    text = "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4, $5, $6}], [$2];"

    def emit(p, tile_at, tensor_at, coord, sem_at, first, end):
        map_at = p.tensor_map(tensor_at, tensor, box, tile.swizzle)
        for offset, place in _emit(p, coord, tile, boxes, first, end):
            p(text, p.b.add(tile_at, offset), map_at, sem_at, *place)
    return emit


@primitive(scope="thread")
def store_ragged_async(tensor, coord, tile, first, end):
    """Start rows of a group = tile, as a bulk group of this thread. What lies beyond the group is not written.

    Args:
        tensor, coord, first, end: as in ``load_ragged_async``. tile: as in ``store_async``.

    PTX: cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group, cp.async.bulk.commit_group.
    """
    transfer("store_ragged_async", tile, tensor.window(coord, tile.shape, first_row=first, end_row=end))


@store_ragged_async.lowering
def _(tensor, coord, tile, first, end):
    boxes, box = _boxes(tensor, tile)
    text = "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [$0, {$2, $3, $4, $5}], [$1];"

    def emit(p, tensor_at, coord, tile_at, first, end):
        map_at = p.tensor_map(tensor_at, tensor, box, tile.swizzle)
        for offset, place in _emit(p, coord, tile, boxes, first, end):
            p(text, map_at, p.b.add(tile_at, offset), *place)
        p("cp.async.bulk.commit_group;")
    return emit


@primitive(scope=("thread", "warp", "warpgroup"))
def look(tensor, number):
    """An integer of this rank's memory that an earlier launch, or somebody that was waited for, has written; all threads see the same.

    Args:
        tensor: ``g.name``, a row of int32; number: which.

    PTX: ld.global.b32; in a warp or warpgroup a shuffle tells the assembler that it is uniform.
    """
    place = tensor.span(4 * int(number), 1) if hasattr(tensor, "span") else tensor.window((0, number), (1, 1))
    return int(read(place).ravel()[0])


@look.lowering
def _(tensor, number):
    def emit(p, tensor_at, number):
        start, = p.tensor(tensor_at, "pointer")
        value = p("ld.global.b32 $0, [$1];", p.b.add(start, p.wide(p.b.shl(number, p.const(2)))), out=[p.i32])
        return value if tensor.role.scope == "thread" else p("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", value, out=[p.i32])
    return Int, emit
