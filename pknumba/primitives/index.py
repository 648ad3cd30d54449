"""Index arithmetic, in 32 unsigned bits on the device (numba's own integers have 64, whose division is slow)."""

from ..lowering import Int, Pair, primitive


@primitive()
def i32(x):
    """x as a 32-bit integer. PTX: cvt, if any."""
    return int(x)


@i32.lowering
def _(x):
    return Int, lambda p, x: x


@primitive()
def div(a, b):
    """a // b of non-negative integers. PTX: div.u32."""
    return a // b


@div.lowering
def _(a, b):
    return Int, lambda p, a, b: p.b.udiv(a, b)


@primitive()
def mod(a, b):
    """a % b of non-negative integers. PTX: rem.u32 (or div.u32 and a multiplication)."""
    return a % b


@mod.lowering
def _(a, b):
    return Int, lambda p, a, b: p.b.urem(a, b)


@primitive()
def least(a, b):
    """The smaller of the integers a and b. PTX: min.s32."""
    return min(a, b)


@least.lowering
def _(a, b):
    return Int, lambda p, a, b: p.b.select(p.b.icmp_signed("<", a, b), a, b)


@primitive()
def most(a, b):
    """The larger of the integers a and b. PTX: max.s32."""
    return max(a, b)


@most.lowering
def _(a, b):
    return Int, lambda p, a, b: p.b.select(p.b.icmp_signed(">", a, b), a, b)


@primitive()
def ring(step, stages):
    """(stage, phase) of the step-th use of a ring of ``stages``: stage = step % stages, phase = step // stages & 1.

    A role keeps no phase: it is computed from how many steps went before, so there is nothing to forget or to advance twice.

    PTX: rem.u32, div.u32; shifts and masks where ``stages`` is a constant power of 2.
    """
    return step % stages, (step // stages) & 1


@ring.lowering
def _(step, stages):
    def emit(p, step, stages):
        return p.b.urem(step, stages), p.b.and_(p.b.udiv(step, stages), p.const(1))
    return Pair, emit


@primitive()
def tile_coord(number, grid, group):
    """(row, column) of a tile, walking down groups of ``group`` tile rows so that neighbours share operands in L2.

    Args:
        number: 0 .. rows * columns - 1.
        grid: (tile rows, tile columns).
        group: tile rows of a group; the last group may have fewer.

    PTX: div.u32, mul, sub.
    """
    rows, cols = grid
    g, r = divmod(number, group * cols)
    col, row = divmod(r, min(group, rows - g * group))
    return g * group + row, col


@tile_coord.lowering
def _(number, grid, group):
    def emit(p, number, grid, group):
        b, (rows, cols) = p.b, grid
        g = b.udiv(number, b.mul(group, cols))
        first = b.mul(g, group)
        r, left = b.sub(number, b.mul(first, cols)), b.sub(rows, first)
        height = b.select(b.icmp_signed("<", group, left), group, left)
        col = b.udiv(r, height)
        return b.add(first, b.sub(r, b.mul(col, height))), col
    return Pair, emit
