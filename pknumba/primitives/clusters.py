"""Blocks of a cluster: they run at once, and what one loads may come to all of them."""

from ..interpreter import current, transfer
from ..lowering import need, primitive
from .tma import _boxes


@primitive(scope="thread")
def load_multicast(tile, tensor, coord, sem):
    """Start tile = tensor[coord] in every block of the cluster: each block loads its share of the rows and sends it to all.

    All blocks call it with the same coordinates. The bytes complete on every block's own ``sem``.

    Args:
        tile: shared tile (rows, columns) of the tensor's dtype; rows a multiple of 8 for each block. It is written in all blocks at
            the same place, so all of them must have given it back: ``sem`` of a ring whose empty semaphores are ``of="cluster"``.
        tensor, coord: as in ``load_async``.
        sem: the semaphore whose ``wait`` makes the whole tile readable; each block announces the whole tile by ``expect``.

    In a cluster of one block it is ``load_async``.

    PTX: cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.
    """
    block = current().block
    n, mates = block.seat, block.mates()
    window = tensor.window((coord[0] * len(mates) + n, coord[1]), tile.share(block, n, len(mates)).shape)
    for mate in mates:
        transfer("load_multicast", window, tile.share(mate, n, len(mates)), completes=sem.of(mate))


@load_multicast.lowering
def _(tile, tensor, coord, sem):
    cluster, mask = tile.role.cluster, (1 << tile.role.cluster) - 1
    need(len(tile.shape) == 2 and tile.rows % (8 * cluster) == 0, f"{tile.role.name}: load_multicast of {tile} by {cluster} blocks. Each "
         "loads a multiple of 8 rows of one tile. Use more rows or a smaller cluster.")
    boxes, box = _boxes(tensor, tile, cluster)
    text = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    text += (" [$0], [$1, {$2, $3}], [$4];" if cluster == 1 else ".multicast::cluster [$0], [$1, {$2, $3}], [$4], m;")
    if cluster > 1:
        text = f"{{ .reg .b16 m; mov.b16 m, {mask}; {text} }}"

    def emit(p, tile_at, tensor_at, coord, sem_at):
        row, col = p.scale(coord[0], tile.rows), p.scale(coord[1], tile.cols)
        if cluster > 1:
            first = p.scale(p.seat(), box[0])
            row, tile_at = p.b.add(row, first), p.b.add(tile_at, p.scale(first, tile.swizzle))
        map_at = p.tensor_map(tensor_at, tensor, box, tile.swizzle)
        for offset, r, c in boxes:
            p(text, p.b.add(tile_at, p.const(offset)), map_at, p.b.add(col, p.const(c)), p.b.add(row, p.const(r)), sem_at)
    return emit
