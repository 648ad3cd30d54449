"""Whole rows by the warps of a block: sums of squares, a number for the block, and rows scaled by it.

A row is a slot of a tensor (see ``boxes``): ``g.box`` says how it is cut into units. Warp ``part`` of ``parts`` has pieces part,
part + parts, ... of it, so a lane reads again only what it read or wrote itself.
"""

import numpy as np

from .. import interpreter
from ..interpreter import read, write
from ..lowering import Real, constant, need, primitive
from .boxes import _runs, _span
from .sync import SYNC
from .units import Units


def _mine(box, row, part, parts, unroll, dtype):
    """Runs of the pieces that a warp has."""
    pieces = -(-int(box[4]) // (32 * unroll))
    return [run for number in range(part, pieces, parts) for run in _runs(box, number, unroll, dtype)]


def _pieces(p, u, box, part, parts):
    """``for number in _pieces(...)``: emit the code of each piece that a warp has."""
    b, whole = p.b, p.const(32 * u.unroll)
    count = b.udiv(b.add(box[4], b.sub(whole, p.const(1))), whole)
    mine = b.select(b.icmp_unsigned("<", part, count), b.udiv(b.add(b.sub(count, part), b.sub(parts, p.const(1))), parts), p.const(0))
    for turn in p.loop(mine):
        yield b.add(part, b.mul(parts, turn))


def _over_lanes(p, value):
    """The sum over the lanes of a warp, the same bits in each."""
    for distance in (16, 8, 4, 2, 1):
        value = p.b.fadd(value, p(f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;", value, out=[p.f32]))
    return value


@primitive(scope="warp")
def squares(tensor, box, row, part, parts, unroll):
    """The sum of the squares of a warp's pieces of a row, in float32 and an order of the executor's own.

    Args:
        tensor: of this rank; box: ``g.box``; row: number of the row. part, parts: which warp this is, and of how many.
        unroll: constant, units that a lane reads at once.

    Returns: number, the same in every lane.

    PTX: ld.relaxed.sys.global.v4.b32, fma, shfl.sync.bfly.b32.
    """
    values = [read(_span(tensor, row, run)).astype(np.float32) for run in _mine(box, row, part, parts, unroll, tensor.dtype)]
    with np.errstate(all="ignore"):
        return np.float32(sum((x * x).sum() for x in values))


@squares.lowering
def _(tensor, box, row, part, parts, unroll):
    u = Units("squares", tensor.dtype, constant(unroll, "squares: unroll"))

    def emit(p, tensor_at, box, row, part, parts, _):
        total, base, aligned = p.variable(p.f32, 0.0), u.base(p, tensor_at, row), u.aligned(p, tensor_at)

        def add(values):
            one = p.b.load(total)
            for x in values:
                one = p.b.fadd(one, p.b.fmul(x, x))
            p.b.store(one, total)

        for number in _pieces(p, u, box, part, parts):
            (offsets,), left = u.places(p, box, number, (tensor_at,))
            add(u.values(p, u.load(p, base, offsets, [u.whole(p, n, aligned) for n in left])))
            for x in u.others(p, box, number, aligned):
                start = p.b.add(base, u.offset(p, tensor_at, x))
                for i in p.loop(x.left):
                    add([u.value(p, u.load_element(p, p.b.add(start, p.wide(p.scale(i, u.itemsize)))))])
        return _over_lanes(p, p.b.load(total))
    return Real, emit


@primitive(scope="warp")
def over_warps(sums, part, value):
    """The sum of a number over the warps of the block, the same bits in each. Every warp calls it equally often.

    Args:
        sums: shared tiles (as many as warps, 8, 8) of float32, which nothing else uses. part: which warp this is. value: number.

    PTX: st.shared.f32, bar.sync, ld.shared.f32, shfl.sync.bfly.b32, bar.sync (so that the next call may write).
    """
    write(sums[part], value)
    interpreter.sync()
    total = np.float32(sum(read(sums[i])[0, 0] for i in range(interpreter.current().role.workers)))
    interpreter.sync()
    return total


@over_warps.lowering
def _(sums, part, value):
    role = sums.role
    need(sums.dtype == "float32" and len(sums.shape) == 3 and role.workers <= min(32, sums.shape[0]), f"{role.name}: over_warps of {sums} "
         f"for {role.workers} warps. It takes a float32 tile for each. Declare Tile((cfg.warps, 8, 8), \"float32\", 32).")
    size = sums.nbytes // sums.shape[0]

    def emit(p, sums_at, part, value):
        lane, value = p.lane(), p.real(value)
        with p.when(p.b.icmp_unsigned("==", lane, p.const(0))):
            p("st.shared.f32 [$0], $1;", p.b.add(sums_at, p.scale(part, size)), value)
        p(f"bar.sync {SYNC};")
        mine, found = p.b.icmp_unsigned("<", lane, p.const(role.workers)), p.variable(p.f32, 0.0)
        with p.when(mine):
            p.b.store(p("ld.shared.f32 $0, [$1];", p.b.add(sums_at, p.scale(lane, size)), out=[p.f32]), found)
        total = _over_lanes(p, p.b.load(found))
        p(f"bar.sync {SYNC};")
        return total
    return Real, emit


@primitive(scope="warp")
def normalise(to, source, weight, box, row, part, parts, unroll, total, eps, copy=None):
    """A warp's pieces of a row: to = source / sqrt(total / n + eps) * weight, in float32 and rounded once; n elements in a row.

    Args:
        to, source: tensors of this rank and of one dtype, whose slot ``row`` is the row. weight: a row of the same dtype.
        box, part, parts, unroll: as in ``squares``. total: number, the sum of the row's squares. eps: number.
        copy: another tensor like ``to``, whose row becomes that of ``source``; None: there is none.

    PTX: rsqrt.approx.f32 (error 2^-22.4), rcp.approx.ftz.f32, mul, ld.relaxed.sys.global.v4.b32, st.relaxed.sys.global.v4.b32.
    """
    n = (int(box[2]) - 1) * (16 // to.dtype.itemsize) + int(box[3])
    scale = np.float32(1) / np.sqrt(np.float32(total) / np.float32(n) + np.float32(eps))
    for run in _mine(box, row, part, parts, unroll, to.dtype):
        x, w = (read(_span(tensor, slot, run)) for tensor, slot in ((source, row), (weight, 0)))
        write(_span(to, row, run), x.astype(np.float32) * scale * w.astype(np.float32))
        if copy is not None:
            write(_span(copy, row, run), x)


@normalise.lowering
def _(to, source, weight, box, row, part, parts, unroll, total, eps, copy):
    given = hasattr(copy, "ident")
    need({t.dtype for t in (source, weight, copy if given else to)} == {to.dtype} != {"int32"}, f"normalise: {source.dtype} to {to.dtype} "
         f"by {weight.dtype}. Rows and weight have one floating-point dtype.")
    u = Units("normalise", to.dtype, constant(unroll, "normalise: unroll"))

    def emit(p, to_at, source_at, weight_at, box, row, part, parts, _, total, eps, copy_at):
        length = p.b.add(p.scale(p.b.sub(box[2], p.const(1)), u.width), box[3])
        each = p("rcp.approx.ftz.f32 $0, $1;", p.b.sitofp(length, p.f32), out=[p.f32], pure=True)
        mean = p.b.fadd(p.b.fmul(p.real(total), each), p.real(eps))
        scale = p("rsqrt.approx.f32 $0, $1;", mean, out=[p.f32], pure=True)
        tensors = [to_at, source_at, weight_at] + ([copy_at] if given else [])
        bases = [u.base(p, at, p.const(0) if at is weight_at else row) for at in tensors]
        aligned = u.all_aligned(p, tensors)
        for number in _pieces(p, u, box, part, parts):
            offsets, left = u.places(p, box, number, tensors)
            whole = [u.whole(p, n, aligned) for n in left]
            same, gain = (u.load(p, bases[i], offsets[i], whole) for i in (1, 2))
            words = u.words(p, [p.b.fmul(p.b.fmul(a, scale), b) for a, b in zip(u.values(p, same), u.values(p, gain))])
            for base, at, what in zip((bases[0], *bases[3:]), (offsets[0], *offsets[3:]), (words, same)):
                u.store(p, base, at, whole, what)
            for unit in u.others(p, box, number, aligned):
                starts = [p.b.add(base, u.offset(p, at, unit)) for base, at in zip(bases, tensors)]
                for i in p.loop(unit.left):
                    target, start, factor, *more = (p.b.add(at, p.wide(p.scale(i, u.itemsize))) for at in starts)
                    bits = u.load_element(p, start)
                    value = p.b.fmul(p.b.fmul(u.value(p, bits), scale), u.value(p, u.load_element(p, factor)))
                    for at, what in zip((target, *more), (u.bits(p, value), bits)):
                        u.store_element(p, at, what)
    return emit
