"""Reductions of a symmetric tensor's window over all ranks, by loads from and stores to every peer.

A warp owns a window of ``rows`` x ``cols`` elements. Sums are made in float32 in rank order, whoever makes them, and
rounded once, so the result has the same bits on every rank and in every run.
"""

import numpy as np

from ..interpreter import read, write
from ..lowering import need, primitive

VECTOR = 8          # elements of 16 bits in one 16-byte access


@primitive(scope="warp")
def all_reduce(tensor, coord, shape):
    """That window of every rank's tensor becomes their sum, made in float32 in rank order and rounded once.

    Every rank must have written its part (``wait_until``), and nobody may read or write the window meanwhile.

    Args:
        tensor: symmetric ``g.name`` (M, N), bfloat16 or float16.
        coord: (row, column) counted in windows of this shape; the part beyond the edge is left alone.
        shape: constant (rows, cols), cols a multiple of 8.

    PTX: ld.relaxed.sys.global.v4.b32 from every rank, st.relaxed.sys.global.v4.b32 to every rank; 2-byte accesses at the edge.
    """
    windows = [tensor.window(coord, shape, peer) for peer in range(tensor.world_size)]
    total = sum(read(w).astype(np.float32) for w in windows)
    for w in windows:
        write(w, total)


def _unpack(dtype):
    """PTX that adds the two halves of register v to the float32 registers a and b (named by position)."""
    if dtype == "bfloat16":
        return "shl.b32 h, {v}, 16; mov.b32 x, h; add.f32 {a}, {a}, x; and.b32 h, {v}, -65536; mov.b32 x, h; add.f32 {b}, {b}, x;"
    return ("{{ .reg .b16 u, w; mov.b32 {{u, w}}, {v}; cvt.f32.f16 x, u; add.f32 {a}, {a}, x; cvt.f32.f16 x, w; add.f32 {b}, {b}, x; }}")


class _Windows:
    """The part of a window that one lane of a warp reduces: ``count`` vectors of 8 elements, at most 8 at once."""

    def __init__(self, tensor, shape):
        self.rows, self.cols = shape
        self.per_row = self.cols // VECTOR
        self.total = self.rows * self.per_row
        self.unroll = min(8, -(-self.total // 32))
        self.kind = {"bfloat16": "bf16", "float16": "f16"}[tensor.dtype]
        self.dtype = tensor.dtype

    def places(self, p, tensor_at, coord, step):
        """For each vector of this lane: its byte offset in a rank's tensor, whether it is whole, and its elements inside."""
        b, c = p.b, p.const
        pitch, height, width = (p.parameter(t, tensor_at, at) for t, at in ((p.i64, 16), (p.i32, 24), (p.i32, 28)))
        first = b.add(p.lane(), p.scale(step, 32 * self.unroll))
        for i in range(self.unroll):
            vector = b.add(first, c(32 * i))
            row, chunk = b.udiv(vector, c(self.per_row)), b.urem(vector, c(self.per_row))
            row = b.add(p.scale(coord[0], self.rows), row)
            col = b.add(p.scale(coord[1], self.cols), p.scale(chunk, VECTOR))
            inside = b.and_(b.icmp_signed("<", row, height), b.icmp_unsigned("<", vector, c(self.total)))
            left = b.select(inside, b.sub(width, col), c(0))
            offset = b.add(b.mul(p.wide(row), pitch), p.wide(b.shl(col, c(1))))
            yield offset, b.icmp_signed(">=", left, c(VECTOR)), left

    def gather(self, p, acc, base, places):
        """acc += the whole vectors of one rank; all loads are issued before the first is used."""
        n, k = 8 * self.unroll, self.unroll
        lines = [f"{{ .reg .b32 v<{4 * k}>; .reg .b32 h; .reg .f32 x; .reg .u64 q; .reg .pred p<{k}>;"]
        for i in range(k):
            at, ok = f"${2 * n + 1 + 2 * i}", f"${2 * n + 2 + 2 * i}"
            regs = ", ".join(f"v{4 * i + j}" for j in range(4))
            lines.append(f"setp.ne.u32 p{i}, {ok}, 0; add.u64 q, ${2 * n}, {at}; " + " ".join(f"mov.b32 v{4 * i + j}, 0;" for j in range(4)) +
                         f" @p{i} ld.relaxed.sys.global.v4.b32 {{{regs}}}, [q];")
        for i in range(4 * k):
            lines.append(_unpack(self.dtype).format(v=f"v{i}", a=f"${2 * i}", b=f"${2 * i + 1}"))
        flat = [x for offset, whole, _ in places for x in (offset, p.b.zext(whole, p.i32))]
        return p.update(acc, "\n".join(lines) + "}", base, *flat)

    def scatter(self, p, acc, base, places):
        """Store the whole vectors to one rank."""
        text = ("{ .reg .b32 t<4>; .reg .pred p; setp.ne.u32 p, $9, 0; " +
                " ".join(f"cvt.rn.{self.kind}x2.f32 t{i}, ${2 * i + 2}, ${2 * i + 1};" for i in range(4)) +
                " @p st.relaxed.sys.global.v4.b32 [$0], {t0, t1, t2, t3}; }")
        for i, (offset, whole, _) in enumerate(places):
            p(text, p.b.add(base, offset), *[p.b.extract_value(acc, 8 * i + j) for j in range(8)], p.b.zext(whole, p.i32))

    def edge(self, p, tensor_at, world, places):
        """The elements of vectors that the array's edge cuts, one by one."""
        b, c = p.b, p.const
        load = {"bf16": "{ .reg .b16 h; .reg .b32 w; ld.relaxed.sys.global.b16 h, [$1]; mov.b32 w, {0, h}; mov.b32 $0, w; }",
                "f16": "{ .reg .b16 h; ld.relaxed.sys.global.b16 h, [$1]; cvt.f32.f16 $0, h; }"}[self.kind]
        load = load.replace("mov.b32 w, {0, h};", ".reg .b16 z; mov.b16 z, 0; mov.b32 w, {z, h};")
        keep = f"{{ .reg .b16 h; cvt.rn.{self.kind}.f32 h, $1; st.relaxed.sys.global.b16 [$0], h; }}"
        for offset, whole, left in places:
            cut = b.and_(b.icmp_signed(">", left, c(0)), b.not_(whole))
            with p.when(cut, likely=False):
                for e in p.loop(left):
                    at = b.add(offset, p.wide(b.shl(e, c(1))))
                    total = p.variable(p.f32, 0.0)
                    b.store(p.const(0.0, p.f32), total)
                    for r in p.loop(world):
                        b.store(b.fadd(b.load(total), p(load, b.add(_base(p, tensor_at, r), at), out=[p.f32])), total)
                    for r in p.loop(world):
                        p(keep, b.add(_base(p, tensor_at, r), at), b.load(total))


def _base(p, tensor_at, peer):
    """Address of a rank's tensor."""
    table = p.parameter(p.i64, tensor_at, 8)
    return p.field(p.i64, p.b.add(table, p.wide(p.b.shl(peer, p.const(3)))), 0)


@all_reduce.lowering
def _(tensor, coord, shape):
    extent = tuple(n.literal_value for n in shape)
    need(extent[1] % VECTOR == 0 and tensor.dtype in ("bfloat16", "float16"), f"{tensor.role.name}: all_reduce of {tensor.dtype} windows {extent}. "
         "It takes bfloat16 or float16 and a multiple of 8 columns.")
    part = _Windows(tensor, extent)

    def emit(p, tensor_at, coord, _):
        b = p.b
        world, rank = p.parameter(p.i32, tensor_at, 32), p.parameter(p.i32, tensor_at, 36)
        acc = p.variable(p.pack([p.const(0.0, p.f32)] * (8 * part.unroll)).type, [0.0] * (8 * part.unroll))
        for step in p.loop(p.const(-(-part.total // (32 * part.unroll)))):
            places = list(part.places(p, tensor_at, coord, step))
            b.store(p.const([0.0] * (8 * part.unroll), acc.type.pointee), acc)
            for r in p.loop(world):
                b.store(part.gather(p, b.load(acc), _base(p, tensor_at, r), places), acc)
            total = b.load(acc)
            for r in p.loop(world):                            # every rank starts with itself: the links share the load
                part.scatter(p, total, _base(p, tensor_at, b.urem(b.add(r, rank), world)), places)
            part.edge(p, tensor_at, world, places)
    return emit
