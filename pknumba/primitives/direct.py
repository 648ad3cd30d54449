"""Panels of results that a warpgroup stores to global memory by itself, without the copy engine."""

import numpy as np

from ..interpreter import dtype_of, values, write
from ..lowering import is_accumulator, need, primitive
from .tile import addresses, matrices_of

#: Bytes that a lane moves at once; lanes of a warp; rows of a block of 64 that belong to a warp.
_UNIT, _LANES, _ROWS = 16, 32, 16


@primitive(scope="warpgroup")
def store_panel(tensor, coord, acc, panel, tile):
    """tensor[coord] = the panel-th block of ``tile`` columns of acc, rounded to the tensor's dtype (nearest even), by way of the tile.

    Each warp moves the 16 of 64 rows that it has itself, so it waits for no other.

    Args:
        tensor: ``g.name`` (M, N) of this rank, bfloat16 or float16; rows begin and end on 16 bytes.
        coord: (row, column) counted in panels of acc's rows and the tile's columns. What lies beyond the edge is not written.
        acc: register tile [m, n], after ``mma_wait(acc, 0)`` if it was multiplied; panel: 0 .. n / c - 1.
        tile: shared tiles (i, 64, c) of the tensor's dtype, one swizzle span wide, that are this worker's alone; used one after the other.

    PTX: cvt.rn, stmatrix.x4, bar.warp.sync, ld.shared.v4.b32, st.global.v4.b32.
    """
    cols = tile.shape[-1]
    some = values(acc)[:, panel * cols:(panel + 1) * cols]
    with np.errstate(over="ignore"):
        write(tensor.window(coord, some.shape), some.astype(dtype_of(tensor.dtype)))


@store_panel.lowering
def _(tensor, coord, acc, panel, tile):
    need(len(tile.shape) == 3 and tile.rows == 64 and tile.panels == 1 and tile.itemsize == 2 and tensor.dtype == tile.dtype,
         f"{tile.role.name}: store_panel by way of {tile} ({tile.dtype}) to {tensor.ident} ({tensor.dtype}). It takes tiles of 64 rows and "
         "one swizzle span of 16-bit values, of the tensor's dtype.")
    need(is_accumulator(acc) and acc.cols % tile.cols == 0, f"{tile.role.name}: store_panel of {acc} by way of {tile}. The tile divides "
         "its columns.")
    text, count, blocks = matrices_of(tile.dtype), tile.shape[0], acc.rows // 64

    def emit(p, tensor_at, coord, acc_v, panel_v, tile_at):
        elements, out = p.elements(acc_v), _Rows(p, tensor_at, coord, acc.rows, tile)
        for n in p.switch(panel_v, acc.cols // tile.cols):          # registers have no index: one straight line a panel
            for m in range(blocks):
                place = p.b.add(tile_at, p.const((n * blocks + m) % count * 64 * tile.swizzle))
                address = addresses(p, tile, place)
                for j in range(tile.cols // 16):
                    first = m * acc.cols // 2 + (n * tile.cols + 16 * j) // 2
                    p(text, address(0, j), *elements[first:first + 8])
                p("bar.warp.sync 0xffffffff;")
                out.move(place, 64 * m)
                if count < acc.cols // tile.cols * blocks:
                    p("bar.warp.sync 0xffffffff;")
    return emit


class _Rows:
    """This warp's rows of a panel on their way from shared to global memory: a lane moves 16 bytes, neighbours move a row."""

    def __init__(self, p, tensor_at, coord, rows, tile):
        b, c = p.b, p.const
        start, self.pitch, self.height, width = p.tensor(tensor_at, "pointer", "pitch", "rows", "cols")
        self.p, self.tile, self.chunks = p, tile, tile.swizzle // _UNIT
        thread = p.thread()
        lane, self.first = b.and_(thread, c(_LANES - 1)), b.and_(b.lshr(thread, c(1)), c(48))
        self.chunk, self.inner = b.and_(lane, c(self.chunks - 1)), b.udiv(lane, c(self.chunks))
        col = b.add(p.scale(coord[1], tile.cols), p.scale(self.chunk, _UNIT // tile.itemsize))
        self.row = b.add(p.scale(coord[0], rows), b.add(self.first, self.inner))
        self.inside = b.icmp_signed("<", col, width)
        self.at = b.add(start, b.add(b.mul(p.wide(self.row), self.pitch), p.wide(p.scale(col, tile.itemsize))))

    def move(self, place, row):
        """From the tile at ``place`` to ``row`` rows below the panel's first."""
        p, b, c = self.p, self.p.b, self.p.const
        shift = {128: 0, 64: 1, 32: 2}[self.tile.swizzle]
        for i in range(0, _ROWS, _LANES // self.chunks):
            own = b.add(self.inner, c(i))
            swizzled = b.xor(self.chunk, b.and_(b.lshr(own, c(shift)), c(self.chunks - 1)))
            source = b.add(b.add(place, p.scale(b.add(self.first, own), self.tile.swizzle)), b.shl(swizzled, c(4)))
            good = b.and_(self.inside, b.icmp_signed("<", b.add(self.row, c(row + i)), self.height))
            p("{ .reg .b32 v<4>; .reg .pred p; setp.ne.u32 p, $2, 0; ld.shared.v4.b32 {v0, v1, v2, v3}, [$1]; "
              "@p st.global.v4.b32 [$0], {v0, v1, v2, v3}; }", b.add(self.at, b.mul(self.pitch, c(row + i, p.i64))), source,
              b.zext(good, p.i32))
