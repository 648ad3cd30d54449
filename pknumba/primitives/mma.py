"""Matrix multiply on a warpgroup's tensor cores, and its float32 accumulator (a value, not a place)."""

from .. import interpreter
from ..lowering import accumulator_type, need, primitive

#: Two highest bits of a matrix descriptor, by swizzle span.
SWIZZLE_MODE = {128: 1, 64: 2, 32: 3}


@primitive(scope=None)
def accumulator(rows, cols):
    """An undefined rows x cols float32 accumulator: the first ``mma`` into it must have add=False.

    Args:
        rows: multiple of 64; cols: multiple of 8, at most 256; rows * cols / 128 registers in each thread.
    """
    return interpreter.Accumulator(rows, cols)


@accumulator.lowering
def _(rows, cols):
    rows, cols = rows.literal_value, cols.literal_value
    need(rows % 64 == 0 and cols % 8 == 0 and 8 <= cols <= 256, f"accumulator [{rows}, {cols}]: wgmma takes multiples of 64 rows and "
         "of 8 columns, up to 256 columns.")
    acc = accumulator_type(rows, cols)
    return acc, lambda p, *_: p.undefined(acc)


def _descriptor(p, at, swizzle, leading, stride):
    """A wgmma matrix descriptor: address, leading and stride byte offsets (in 16 bytes), swizzle mode."""
    high = (SWIZZLE_MODE[swizzle] << 62) | ((stride >> 4) << 32) | ((leading >> 4 & 0x3FFF) << 16)
    return p.b.or_(p.wide(p.b.lshr(at, p.const(4))), p.const(high - (1 << 64) if high >> 63 else high, p.i64))


def _k_step(tile, k, transposed_read):
    """Byte offset of the k-th 16 columns (K-major) or rows (N-major, ``transposed_read``) of an operand."""
    if transposed_read:
        return k * 16 * tile.swizzle
    panel, inside = divmod(k * 16, tile.panel)
    return panel * tile.rows * tile.swizzle + inside * tile.itemsize


@primitive(scope="warpgroup")
def mma(acc, a, b, add, b_transposed):
    """acc = a @ b (+ acc if ``add``), asynchronous: ``a`` and ``b`` stay in use until an ``mma_wait``.

    Args:
        acc: accumulator [m, n].
        a: shared tile (m, k), bfloat16 or float16.
        b: shared tile (k, n), N-major; or with ``b_transposed`` (n, k), K-major, of which the transpose is multiplied.
        add: bool; False ignores what acc held.
        b_transposed: constant bool.

    Returns: the accumulator, to be used instead of ``acc``.

    PTX: wgmma.mma_async m64nNk16, float32 accumulation, wgmma.commit_group.
    """
    return acc.multiply(a, b, add, b_transposed)


@mma.lowering
def _(acc, a, b, add, b_transposed):
    by_row = bool(b_transposed.literal_value)
    (m, k), (n, kb) = a.shape, (b.shape if by_row else b.shape[::-1])
    need((m, n) == (acc.rows, acc.cols) and k == kb, f"{a.role.name}: mma of {a} and {b}{' transposed' if by_row else ''} into {acc}. "
         "Shapes must be (m, k), (k, n) and (m, n).")
    need(k % 16 == 0 and a.dtype == b.dtype and a.dtype in ("bfloat16", "float16"), f"{a.role.name}: mma of {a.dtype} {a} and {b.dtype} {b}. "
         "Both are bfloat16 or both float16, with a multiple of 16 columns of a.")
    kind = {"bfloat16": "bf16", "float16": "f16"}[a.dtype]
    count, width = acc.size, acc.cols // 2
    lines = [f"{{ .reg .b64 da, db; .reg .b32 la, lb, h, g, x; .reg .pred p; setp.ne.b32 p, ${2 * count + 2}, 0; "
             f"mov.b64 {{la, h}}, ${2 * count}; mov.b64 {{lb, g}}, ${2 * count + 1}; wgmma.fence.sync.aligned;"]
    for step in range(k // 16):
        lines.append(f"add.u32 x, lb, {_k_step(b, step, not by_row) >> 4}; mov.b64 db, {{x, g}};")
        for block in range(m // 64):
            registers = ", ".join(f"${block * width + i}" for i in range(width))
            lines.append(f"add.u32 x, la, {(_k_step(a, step, False) + block * 64 * a.swizzle) >> 4}; mov.b64 da, {{x, h}}; "
                         f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, da, db, "
                         f"{1 if step else 'p'}, 1, 1, 0, {int(not by_row)};")
    lines.append("wgmma.commit_group.sync.aligned; }")

    def emit(p, acc_v, a_at, b_at, add_v, _):
        da = _descriptor(p, a_at, a.swizzle, 16, 8 * a.swizzle)
        db = _descriptor(p, b_at, b.swizzle, 16 if by_row else b.rows * b.swizzle, 8 * b.swizzle)
        return p.update(acc_v, "\n".join(lines), da, db, add_v)
    return acc, emit


@primitive(scope=None)
def mma_wait(acc, pending):
    """Until all but the last ``pending`` multiplications of this worker have finished.

    Args:
        acc: accumulator; pending: constant.

    Returns: the accumulator, readable once pending = 0; the operands of finished multiplications may be overwritten.

    PTX: wgmma.wait_group.
    """
    return acc.wait(pending)


@mma_wait.lowering
def _(acc, pending):
    return acc, lambda p, acc_v, _: p.update(acc_v, f"wgmma.wait_group.sync.aligned {p.types[1].literal_value};")


@primitive(scope="warpgroup")
def store(tile, acc, panel):
    """tile = the panel-th block of ``tile`` columns of acc, rounded to the tile's dtype (nearest even).

    Args:
        tile: shared tile (m, c), bfloat16 or float16, c a multiple of 16.
        acc: accumulator [m, n] after ``mma_wait(acc, 0)``; panel: 0 .. n / c - 1.

    PTX: cvt.rn, stmatrix.x4 into the tile's swizzle. Ordinary stores: ``fence_async`` before the copy engine reads.
    """
    interpreter.write(tile, acc.columns(panel * tile.shape[-1], tile.shape[-1]))


@store.lowering
def _(tile, acc, panel):
    need(tile.shape[0] == acc.rows and acc.cols % tile.cols == 0 and tile.cols % 16 == 0, f"{tile.role.name}: store of {acc} into {tile}. "
         "The tile has the accumulator's rows and divides its columns.")
    need(tile.dtype in ("bfloat16", "float16"), f"{tile.role.name}: store into {tile} of {tile.dtype}. It takes bfloat16 or float16.")
    kind = {"bfloat16": "bf16x2", "float16": "f16x2"}[tile.dtype]
    text = "{ .reg .b32 t<4>; " + " ".join(f"cvt.rn.{kind}.f32 t{i}, ${2 * i + 2}, ${2 * i + 1};" for i in range(4)) + \
        " stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {t0, t1, t2, t3}; }"
    span = tile.swizzle
    shift, chunks = {128: 0, 64: 1, 32: 2}[span], span // 16

    def emit(p, tile_at, acc_v, panel_v):
        b, c = p.b, p.const
        thread = p.thread()
        row, half = b.and_(thread, c(15)), b.and_(b.lshr(thread, c(4)), c(1))
        line = b.add(tile_at, p.scale(b.add(b.and_(b.lshr(thread, c(1)), c(48)), row), span))
        mask = b.and_(b.lshr(row, c(shift)), c(chunks - 1))
        at = [b.add(line, b.shl(b.xor(b.add(half, c(2 * j)), mask), c(4))) for j in range(chunks // 2)]
        for n in p.switch(panel_v, acc.cols // tile.cols):          # registers have no index: one straight line a panel
            for m in range(acc.rows // 64):
                for j in range(tile.cols // 16):
                    first = m * acc.cols // 2 + (n * tile.cols + 16 * j) // 2
                    block, inside = divmod(j, chunks // 2)
                    offset = m * 64 * span + block * tile.rows * span
                    p(text, b.add(at[inside], c(offset)), *[b.extract_value(acc_v, first + i) for i in range(8)])
    return emit
