"""Matrix multiply on a warpgroup's tensor cores, and its float32 accumulator (a value, not a place)."""

import functools

import numpy as np

from .. import interpreter
from ..lowering import accumulator_type, constant, is_accumulator, is_operand, is_rows, need, operand_type, primitive
from .halves import KIND, check_dtype, join

#: What wgmma calls its operands.
_KIND = {**KIND, "float32": "tf32"}
#: Two highest bits of a matrix descriptor, by swizzle span.
SWIZZLE_MODE = {128: 1, 64: 2, 32: 3}


@primitive(scope=None)
def accumulator(rows, cols):
    """An undefined rows x cols float32 accumulator: the first ``mma`` into it must have add=False.

    Args:
        rows: multiple of 64; cols: multiple of 8, at most 256; rows * cols / 128 registers in each thread.

    PTX: none, registers only.
    """
    return interpreter.Accumulator(rows, cols)


@accumulator.lowering
def _(rows, cols):
    rows, cols = constant(rows, "accumulator: rows"), constant(cols, "accumulator: cols")
    need(rows % 64 == 0 and cols % 8 == 0 and 8 <= cols <= 256, f"accumulator [{rows}, {cols}]: wgmma takes multiples of 64 rows and "
         "of 8 columns, up to 256 columns.")
    acc = accumulator_type(rows, cols)
    return acc, lambda p, *_: p.undefined(acc)


def _descriptor(p, at, tile, leading, stride):
    """A wgmma matrix descriptor: address, leading and stride byte offsets (in 16 bytes), swizzle mode."""
    if tile.role.cluster > 1:                   # from bit 24 on, an address says which block's memory it is
        at = p.b.and_(at, p.const(0x3FFFF))
    high = (SWIZZLE_MODE[tile.swizzle] << 62) | ((stride >> 4) << 32) | ((leading >> 4 & 0x3FFF) << 16)
    return p.b.or_(p.wide(p.b.lshr(at, p.const(4))), p.const(high - (1 << 64) if high >> 63 else high, p.i64))


def _depth(operand):
    """Depth of one multiplication: 32 bytes of a row."""
    return 8 if operand.dtype == "float32" else 16


def _k_step(tile, k, transposed_read):
    """Byte offset of the k-th columns (K-major) or rows (N-major, ``transposed_read``) of an operand that are multiplied at once."""
    if transposed_read:
        return k * 16 * tile.swizzle
    panel, inside = divmod(k * _depth(tile), tile.panel)
    return panel * tile.rows * tile.swizzle + inside * tile.itemsize


@primitive(scope="warpgroup")
def as_operand(acc, dtype):
    """acc rounded to ``dtype`` (nearest even) as the A operand of ``mma``, in registers.

    Args:
        acc: register tile [m, k], k a multiple of 16; dtype: constant, "bfloat16" or "float16", that of B's tile.

    Returns: operand [m, k], for ``mma`` only.

    PTX: cvt.rn.bf16x2.f32 or cvt.rn.f16x2.f32.
    """
    check_dtype("as_operand", dtype)
    with np.errstate(over="ignore"):
        return interpreter.values(acc).astype(interpreter.dtype_of(dtype))


@as_operand.lowering
def _(acc, dtype):
    kind = constant(dtype, "as_operand: dtype")
    need(is_accumulator(acc) and kind in KIND and acc.cols % 16 == 0, f"as_operand: of {acc} as {kind!r}. It takes a register tile with a "
         "multiple of 16 columns and \"bfloat16\" or \"float16\".")

    def emit(p, acc_v, _):          # the pairs of wgmma's A fragment are those of the accumulator, in its order
        v = p.elements(acc_v)
        return p.pack([join(p, kind, v[i], v[i + 1]) for i in range(0, acc.size, 2)])
    return operand_type(acc.rows, acc.cols, kind), emit


@primitive(scope="warpgroup")
def mma(acc, a, b, add=True, b_transposed=False, rows=None):
    """acc = a @ b (+ acc if ``add``), asynchronous: ``a`` and ``b`` stay in use until an ``mma_wait``.

    Args:
        acc: accumulator [m, n].
        a: shared tile (m, k), bfloat16, float16 or float32; or an operand [m, k] in registers (``as_operand``). Of float32 the tensor cores
            take the 10 highest bits of the mantissa (tf32); the others are cut off.
        b: shared tile (k, n), N-major; or with ``b_transposed`` (n, k), K-major, of which the transpose is multiplied: float32 must be.
        add: bool; False ignores what acc held.
        b_transposed: constant bool.
        rows: of ``a`` that matter, the same in all threads; None: all. Blocks of 64 rows beyond them are not multiplied: what acc holds of
            them is undefined. None for ``a`` in registers.

    Returns: the accumulator, to be used instead of ``acc``. ContractError if shapes or dtypes do not fit.

    PTX: wgmma.mma_async m64nNk16, m64nNk8 of tf32, float32 accumulation, wgmma.commit_group; a branch for each number of blocks.
    """
    return acc.multiply(a, b, add, b_transposed, rows)


def _check_mma(acc, a, b, by_row):
    tiles = [x for x in (a, b) if hasattr(x, "role") and len(getattr(x, "shape", ())) == 2]
    need(b in tiles and (a in tiles or is_operand(a)), f"mma: of {a} and {b}. B is a shared tile, A a shared tile or "
         "as_operand(acc, dtype).")
    (m, k), n, kb = a.shape, *(b.shape if by_row else b.shape[::-1])
    need((m, n) == (acc.rows, acc.cols) and k == kb, f"{b.role.name}: mma of {a} and {b}{' transposed' if by_row else ''} into {acc}. "
         "Shapes must be (m, k), (k, n) and (m, n).")
    need(a.dtype == b.dtype and a.dtype in _KIND and k % _depth(a) == 0, f"{b.role.name}: mma of {a.dtype} {a} and {b.dtype} {b}. Both are "
         "bfloat16 or float16, with a multiple of 16 columns of a, or float32, with a multiple of 8.")
    need(a.dtype != "float32" or by_row, f"{b.role.name}: mma of float32 {b} along its rows. The tensor cores take float32 along the "
         "depth. Load B as (n, k) and pass b_transposed=True.")


def _products(acc, a, b, by_row, blocks):
    """PTX of all steps for the first blocks of 64 rows, a group of its own."""
    count, width, steps, lines = acc.size, acc.cols // 2, a.shape[1] // _depth(a), ["wgmma.fence.sync.aligned;"]
    kind = f"k{_depth(a)}.f32.{_KIND[a.dtype]}.{_KIND[b.dtype]}"
    for step in range(steps):
        lines.append(f"add.u32 x, lb, {_k_step(b, step, not by_row) >> 4}; mov.b64 db, {{x, g}};")
        for block in range(blocks):
            if is_operand(a):
                pairs = 2 * count + (block * steps + step) * 4
                source, trans = "{" + ", ".join(f"${pairs + i}" for i in range(4)) + "}", f", {int(not by_row)}"
            else:
                lines.append(f"add.u32 x, la, {(_k_step(a, step, False) + block * 64 * a.swizzle) >> 4}; mov.b64 da, {{x, h}};")
                source, trans = "da", f", 0, {int(not by_row)}" if a.dtype in KIND else ""
            sums = ", ".join(f"${block * width + i}" for i in range(width))
            lines.append(f"wgmma.mma_async.sync.aligned.m64n{acc.cols}{kind} {{{sums}}}, {source}, db, {1 if step else 'p'}, 1, 1{trans};")
    return [*lines, "wgmma.commit_group.sync.aligned;"]


def _mma_text(acc, a, b, by_row, counted):
    """PTX: operands are the accumulator twice, then A's descriptor or registers, B's descriptor, whether to add; and, if ``counted``, how
    many rows matter. Each number of blocks has its own code: predicates on single multiplications would make each a group."""
    most, at_b = acc.rows // 64, 2 * acc.size + (a.size if is_operand(a) else 1)
    first = "" if is_operand(a) else f"mov.b64 {{la, h}}, ${at_b - 1};"
    lines = [f"{{ .reg .b64 da, db; .reg .b32 la, lb, h, g, x; .reg .pred p, q; setp.ne.b32 p, ${at_b + 1}, 0; {first} "
             f"mov.b64 {{lb, g}}, ${at_b};"]
    for blocks in range(1, most if counted else 1):
        lines += [f"setp.gt.s32 q, ${at_b + 2}, {64 * blocks}; @q bra OVER{blocks};", *_products(acc, a, b, by_row, blocks),
                  f"bra DONE; OVER{blocks}:"]
    return "\n".join([*lines, *_products(acc, a, b, by_row, most), "DONE: }" if counted else "}"])


@mma.lowering
def _(acc, a, b, add, b_transposed, rows=None):
    by_row = bool(constant(b_transposed, "mma: b_transposed"))
    need(is_accumulator(acc), f"mma: into {acc}. It takes an accumulator.")
    _check_mma(acc, a, b, by_row)
    counted = getattr(rows, "name", "none") != "none" and acc.rows > 64
    need(not (counted and is_operand(a)), f"{b.role.name}: mma of {a}, of which some rows matter. A in registers is multiplied whole. "
         "Leave rows out.")
    text = _mma_text(acc, a, b, by_row, counted)

    def emit(p, acc_v, a_v, b_at, add_v, _, rows_v=None):
        source = p.elements(a_v) if is_operand(a) else [_descriptor(p, a_v, a, 16, 8 * a.swizzle)]
        db = _descriptor(p, b_at, b, 16 if by_row else b.rows * b.swizzle, 8 * b.swizzle)
        return p.update(acc_v, text, *source, db, add_v, *[rows_v] * counted)
    return acc, emit


@primitive(scope="warpgroup")
def mma_wait(acc, pending=0, *keep):
    """Until all but the last ``pending`` multiplications of this worker have finished.

    Args:
        acc: accumulator; pending: constant.
        keep: operands and register tiles that must not give up their registers before: A operands in flight, and values that are
            to be computed before the wait. The assembler would move what they come from behind it; row vectors among them are
            compared, and if their sum were -inf it would go to a word of shared memory that nobody reads: that it respects.

    Returns: the accumulator, readable once pending = 0; the operands of finished multiplications may be overwritten.

    PTX: wgmma.wait_group; setp.lt.f32 and a predicated st.volatile.shared.f32 of row vectors.
    """
    return acc.wait(pending)


@mma_wait.lowering
def _(acc, pending, *keep):
    need(is_accumulator(acc), f"mma_wait: of {acc}. It takes an accumulator.")
    text = f"wgmma.wait_group.sync.aligned {constant(pending, 'mma_wait: pending')};"

    def emit(p, acc_v, _, *kept):
        arrays = [p.elements(array) for array in kept]
        for values in [v for v, ty in zip(arrays, keep) if is_rows(ty)]:
            p(f"{{ .reg .pred p; setp.lt.f32 p, $1, 0fFF7FFFFF; @p st.volatile.shared.f32 [$0+{p.PIN}], $1; }}", p.shared_base(),
              functools.reduce(p.b.fadd, values))
        return p.update(acc_v, text, *(x for values in arrays for x in values))
    return acc, emit
