"""Between shared memory, or rows of global memory, and the registers of a warpgroup.

Register tiles are float32 in wgmma's accumulator order and are values, not places: each primitive gives a new one. A
thread of quad q (lane / 4) and place t in it (lane % 4) holds, of each 64 rows, rows 16 * warp + q and + 8, and of each 8
columns, columns 2 t and 2 t + 1; so the four threads of a quad share a row.
"""

from ..interpreter import Accumulator, Rows, read, values, write
from ..lowering import accumulator_type, constant, is_accumulator, is_rows, need, primitive, rows_type
from .halves import KIND, split


def addresses(p, tile, tile_at):
    """Function (m, j) -> shared address at which this lane moves its part of rows 64 m to 64 m + 63 and bytes 32 j to 32 j + 31.

    A 16-bit tile goes by m8n8 matrices, of which each lane names one row of 16 bytes; a float32 tile by the two columns that
    a lane owns (its row + 8 lies 8 swizzle spans further on).
    """
    b, c, thread, span = p.b, p.const, p.thread(), tile.swizzle
    shift, chunks = {128: 0, 64: 1, 32: 2}[span], span // 16
    if tile.itemsize == 4:
        row, half = b.and_(b.lshr(thread, c(2)), c(7)), b.and_(b.lshr(thread, c(1)), c(1))
        tile_at = b.add(tile_at, b.shl(b.and_(thread, c(1)), c(3)))
    else:
        row, half = b.and_(thread, c(15)), b.and_(b.lshr(thread, c(4)), c(1))
    line = b.add(tile_at, p.scale(b.add(b.and_(b.lshr(thread, c(1)), c(48)), row), span))
    mask = b.and_(b.lshr(row, c(shift)), c(chunks - 1))
    first = b.add(line, b.shl(b.xor(half, mask), c(4)))
    at = [b.xor(first, c(32 * j)) for j in range(chunks // 2)]          # a line begins on as many bytes as it has

    def address(m, j):
        block, inside = divmod(j, chunks // 2)
        return b.add(at[inside], c(m * 64 * span + block * tile.rows * span))
    return address


def _read_lanes(p, tile, tile_at):
    """A tile's values that this thread has of it as a register tile, in their order, each read when it is asked for."""
    address = addresses(p, tile, tile_at)
    for m in range(tile.rows // 64):
        for j in range(tile.cols * tile.itemsize // 32):
            at = address(m, j)
            if tile.itemsize == 4:
                for place in (at, p.b.add(at, p.const(8 * tile.swizzle))):
                    out = p("ld.shared.v2.f32 {$0, $1}, [$2];", place, out=[p.f32] * 2)
                    yield from (p.b.extract_value(out, i) for i in range(2))
            else:
                out = p("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", at, out=[p.i32] * 4)
                yield from (x for i in range(4) for x in split(p, tile.dtype, p.b.extract_value(out, i)))


def _check(name, tile):
    need(len(tile.shape) == 2 and tile.rows % 64 == 0 and tile.dtype in (*KIND, "float32"), f"{tile.role.name}: {name} of {tile} of "
         f"{tile.dtype}. It takes one tile of float32, bfloat16 or float16 with a multiple of 64 rows.")


@primitive(scope="warpgroup")
def load(tile):
    """The tile's values as a float32 register tile. The worker's threads meet: all have read when one of them arrives.

    Args:
        tile: shared tile (m, n), float32, bfloat16 or float16; m a multiple of 64. What was written to it must be ordered before
            (a ``wait``, or ``sync``).

    Returns: accumulator [m, n]. ContractError for another shape or dtype.

    PTX: ldmatrix.x4 for 16-bit tiles, ld.shared.v2.f32 for float32, from the tile's swizzle; bar.sync of the worker.
    """
    return Accumulator.of(read(tile).astype("float32"))


@load.lowering
def _(tile):
    _check("load", tile)
    def emit(p, tile_at):
        found = list(_read_lanes(p, tile, tile_at))
        p.sync_worker(tile.role)                # one thread arrives for all: none may still be reading then (seen on an H200)
        return p.pack(found)
    return accumulator_type(*tile.shape), emit


def matrices_of(dtype):
    """PTX that stores 16 rows and 16 columns of a warp's sums: $0 is the lane's address, $1 to $8 its sums in their order."""
    pairs = " ".join(f"cvt.rn.{KIND.get(dtype)}x2.f32 t{i}, ${2 * i + 2}, ${2 * i + 1};" for i in range(4))
    return f"{{ .reg .b32 t<4>; {pairs} stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {{t0, t1, t2, t3}}; }}"


@primitive(scope="warpgroup")
def store(tile, acc, panel=0):
    """tile = the panel-th block of ``tile`` columns of acc, rounded to the tile's dtype (nearest even).

    Args:
        tile: shared tile (m, c), float32, bfloat16 or float16.
        acc: register tile [m, n], after ``mma_wait(acc, 0)`` if it was multiplied; panel: 0 .. n / c - 1.

    Raises ContractError if the shapes do not fit.

    PTX: cvt.rn, stmatrix.x4 for 16-bit tiles, st.shared.v2.f32 for float32, into the tile's swizzle. Ordinary stores:
    ``fence_async`` before the copy engine or wgmma reads.
    """
    cols = tile.shape[-1]
    write(tile, values(acc)[:, panel * cols:(panel + 1) * cols])


@store.lowering
def _(tile, acc, panel):
    _check("store", tile)
    need(is_accumulator(acc) and tile.rows == acc.rows and acc.cols % tile.cols == 0, f"{tile.role.name}: store of {acc} into {tile}. "
         "The tile has the accumulator's rows and divides its columns.")
    kind, wide, matrices = KIND.get(tile.dtype), "st.shared.v2.f32 [$0], {$1, $2};", matrices_of(tile.dtype)
    step = 32 // tile.itemsize                  # columns that go at once

    def emit(p, tile_at, acc_v, panel_v):
        address, elements = addresses(p, tile, tile_at), p.elements(acc_v)
        for n in p.switch(panel_v, acc.cols // tile.cols):          # registers have no index: one straight line a panel
            for m in range(acc.rows // 64):
                for j in range(tile.cols // step):
                    own = elements[m * acc.cols // 2 + (n * tile.cols + step * j) // 2:]
                    at = address(m, j)
                    if kind:
                        p(matrices, at, *own[:8])
                    else:
                        p(wide, at, *own[:2])
                        p(wide, p.b.add(at, p.const(8 * tile.swizzle)), *own[2:4])
    return emit


def _merge(p, cases):
    """The value of whichever block of a switch was played; nothing may come between the switch and this. cases: [(value, block)]."""
    if len({id(value) for value, _ in cases}) == 1:
        return cases[0][0]
    merged = p.b.phi(p.f32)
    for value, block in cases:
        merged.add_incoming(value, block)
    return merged


@primitive(scope="warpgroup")
def add_panel(acc, tile, panel=0):
    """acc with the tile added to its panel-th block of ``tile`` columns, in float32.

    The worker's threads meet: all have read when one of them arrives.

    Args:
        acc: register tile [m, n], after ``mma_wait(acc, 0)`` if it was multiplied.
        tile: shared tile (m, c), float32, bfloat16 or float16, as of ``load``; panel: 0 .. n / c - 1.

    Returns: register tile [m, n]. Raises ContractError if the shapes do not fit.

    PTX: ldmatrix.x4 for 16-bit tiles, ld.shared.v2.f32 for float32; add.f32; bar.sync of the worker.
    """
    cols, total = tile.shape[-1], values(acc).copy()
    total[:, panel * cols:(panel + 1) * cols] += read(tile).astype("float32")
    return Accumulator.of(total)


@add_panel.lowering
def _(acc, tile, panel):
    _check("add_panel", tile)
    need(is_accumulator(acc) and tile.rows == acc.rows and acc.cols % tile.cols == 0, f"{tile.role.name}: add_panel of {tile} to {acc}. "
         "The tile has the accumulator's rows and divides its columns.")

    def emit(p, acc_v, tile_at, panel_v):
        elements, cases, each = p.elements(acc_v), [], tile.cols // 2
        for n in p.switch(panel_v, acc.cols // tile.cols):
            found, total = iter(_read_lanes(p, tile, tile_at)), list(elements)
            for m in range(acc.rows // 64):
                first = m * acc.cols // 2 + n * each
                total[first:first + each] = [p.b.fadd(x, next(found)) for x in elements[first:first + each]]
            cases.append((total, p.b.block))
        merged = [_merge(p, [(total[i], block) for total, block in cases]) for i in range(acc.size)]
        p.sync_worker(tile.role)
        return p.pack(merged)
    return acc, emit


def _row_places(p, tensor_at, coord, rows, peer=None):
    """For each slot of a row vector: (address in the tensor of this thread's row, whether it lies inside)."""
    b, c, thread = p.b, p.const, p.thread()
    base, peers, pitch, height, width = p.tensor(tensor_at, "pointer", "peers", "pitch", "rows", "cols")
    if peer is not None:
        base = p.of_rank(peers, peer)
    line = b.add(base, b.mul(p.wide(coord[0]), pitch))
    first = b.add(p.scale(coord[1], rows), b.add(b.and_(b.lshr(thread, c(1)), c(48)), b.and_(b.lshr(thread, c(2)), c(7))))
    for slot in range(rows // 32):
        col = b.add(first, c(64 * (slot // 2) + 8 * (slot % 2)))
        inside = b.and_(b.icmp_signed("<", coord[0], height), b.icmp_signed("<", col, width))
        yield b.add(line, p.wide(b.shl(col, c(2)))), inside


def _check_rows(name, tensor, rows):
    need(tensor.dtype == "float32" and rows % 64 == 0, f"{tensor.role.name}: {name} of {rows} values of {tensor.ident} ({tensor.dtype}). "
         "It takes float32 and a multiple of 64 rows.")


@primitive(scope="warpgroup")
def load_rows(tensor, coord, rows, peer=None):
    """``rows`` neighbouring values of a row of global memory, as a row vector.

    Args:
        tensor: ``g.name`` (M, N), float32.
        coord: (row, column counted in ``rows`` elements); what lies beyond the edge is read as zero.
        rows: constant, a multiple of 64.
        peer: rank whose memory is read; None: this rank's.

    Returns: row vector [rows]. Nothing may write the values meanwhile.

    PTX: ld.global.f32; ld.relaxed.sys.global.f32 of a peer's.
    """
    return Rows(read(tensor.window(coord, (1, rows), peer)))


@load_rows.lowering
def _(tensor, coord, rows, peer):
    n = constant(rows, "load_rows: rows")
    _check_rows("load_rows", tensor, n)
    text = "{{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld{}.global.f32 $0, [$1]; }}"

    def emit(p, tensor_at, coord, _, peer):
        load = text.format("" if peer is None else ".relaxed.sys")
        places = _row_places(p, tensor_at, coord, n, peer)
        return p.pack([p(load, at, p.b.zext(inside, p.i32), out=[p.f32]) for at, inside in places])
    return rows_type(n), emit


@primitive(scope="warpgroup")
def store_rows(tensor, coord, rows):
    """A row vector to neighbouring values of a row of global memory.

    Args:
        tensor: ``g.name`` (M, N), float32, of this rank.
        coord: (row, column counted in the vector's elements); what lies beyond the edge is not written.
        rows: row vector.

    PTX: st.global.f32, by one thread of each quad.
    """
    write(tensor.window(coord, (1, rows.rows)), rows.value)


@store_rows.lowering
def _(tensor, coord, rows):
    need(is_rows(rows), f"{tensor.role.name}: store_rows of {rows}. It takes a row vector.")
    _check_rows("store_rows", tensor, rows.rows)
    text = "{ .reg .pred p; setp.ne.u32 p, $2, 0; @p st.global.f32 [$0], $1; }"

    def emit(p, tensor_at, coord, vector):
        first = p.b.icmp_unsigned("==", p.b.and_(p.thread(), p.const(3)), p.const(0))
        for value, (at, inside) in zip(p.elements(vector), _row_places(p, tensor_at, coord, rows.rows)):
            p(text, at, value, p.b.zext(p.b.and_(inside, first), p.i32))
    return emit
