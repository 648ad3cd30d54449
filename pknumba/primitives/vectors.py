"""PTX for a window of global memory as the 16-byte vectors that the lanes of a warp move: what lowerings of reductions share."""

from collections import namedtuple

from ..lowering import BEYOND, insist
from ..tiles import ITEMSIZE
from .halves import KIND, join, split

#: One vector of a lane. ``offset``: bytes from the tensor's start; ``left``: elements of it inside the array, possibly
#: none or more than a vector has; ``whole``: whether all are.
Place = namedtuple("Place", "offset left whole")

_LOAD = {"bfloat16": "{ .reg .b16 h, z; ld.relaxed.sys.global.b16 h, [$1]; mov.b16 z, 0; mov.b32 $0, {z, h}; }",
         "float16": "{ .reg .b16 h; ld.relaxed.sys.global.b16 h, [$1]; cvt.f32.f16 $0, h; }",
         "float32": "ld.relaxed.sys.global.f32 $0, [$1];"}


class Vectors:
    """The part of a window that one lane of a warp moves: ``unroll`` vectors at once, ``steps`` times."""

    def __init__(self, tensor, shape):
        rows, cols = shape
        self.ident, self.role = tensor.ident, tensor.role
        self.dtype, self.itemsize = tensor.dtype, ITEMSIZE[tensor.dtype]
        self.width = 16 // self.itemsize
        self.shape, self.per_row, self.total = (rows, cols), cols // self.width, rows * cols // self.width
        self.steps = -(-self.total // (32 * 6))                    # at most 6 vectors of a lane at once, as many in each step
        self.unroll = -(-self.total // (32 * self.steps))

    def places(self, p, tensor_at, coord, step):
        """The lane's vectors in the step-th part of a tensor's window."""
        b, c, (rows, cols) = p.b, p.const, self.shape
        pitch, height, width = p.tensor(tensor_at, "pitch", "rows", "cols")
        first, found = b.add(p.lane(), p.scale(step, 32 * self.unroll)), []
        for name, at, size, end in (("row", coord[0], rows, height), ("column", coord[1], cols, width)):
            insist(p, self.role, f"first {name} of a window of {self.ident}", lambda at=at, size=size: p.scale(at, size),
                   lambda end=end: b.add(end, c(BEYOND)))
        for i in range(self.unroll):
            vector = b.add(first, c(32 * i))
            row = b.add(p.scale(coord[0], rows), b.udiv(vector, c(self.per_row)))
            col = b.add(p.scale(coord[1], cols), p.scale(b.urem(vector, c(self.per_row)), self.width))
            inside = b.and_(b.icmp_signed("<", row, height), b.icmp_unsigned("<", vector, c(self.total)))
            offset = b.add(b.mul(p.wide(row), pitch), p.wide(p.scale(col, self.itemsize)))
            found.append(self._place(p, offset, b.select(inside, b.sub(width, col), c(0))))
        return found

    def _place(self, p, offset, left):
        return Place(offset, left, p.b.icmp_signed(">=", left, p.const(self.width)))

    def common(self, p, places, others):
        """``places`` cut to what lies inside at ``others`` too, and the other way round."""
        left = [p.b.select(p.b.icmp_signed("<", x.left, y.left), x.left, y.left) for x, y in zip(places, others)]
        return [[self._place(p, x.offset, n) for x, n in zip(part, left)] for part in (places, others)]

    # ---- whole vectors: four 32-bit words each
    def load(self, p, instruction, base, places):
        """Words of the lane's whole vectors, zero for others; all loads are issued before the first is used."""
        n = self.unroll
        lines = [f"{{ .reg .u64 q; .reg .pred p<{n}>; .reg .b32 v<{4 * n}>;"]
        for i in range(n):
            words = [f"v{4 * i + j}" for j in range(4)]
            lines.append(f"setp.ne.u32 p{i}, ${4 * n + 2 + 2 * i}, 0; add.u64 q, ${4 * n}, ${4 * n + 1 + 2 * i}; " +
                         " ".join(f"mov.b32 {w}, 0;" for w in words) + f" @p{i} {instruction} {{{', '.join(words)}}}, [q];")
        lines.append(" ".join(f"mov.b32 ${i}, v{i};" for i in range(4 * n)) + " }")
        flat = [x for place in places for x in (place.offset, p.b.zext(place.whole, p.i32))]
        out = p("\n".join(lines), base, *flat, out=[p.i32] * (4 * n))
        return [p.b.extract_value(out, i) for i in range(4 * n)]

    def store(self, p, instruction, base, places, words):
        """Store the lane's whole vectors."""
        text = f"{{ .reg .pred p; setp.ne.u32 p, $5, 0; @p {instruction} [$0], {{$1, $2, $3, $4}}; }}"
        for i, place in enumerate(places):
            p(text, p.b.add(base, place.offset), *words[4 * i:4 * i + 4], p.b.zext(place.whole, p.i32))

    def floats(self, p, words):
        """The elements of words as f32."""
        if self.itemsize == 4:
            return [p.b.bitcast(w, p.f32) for w in words]
        return [x for w in words for x in split(p, self.dtype, w)]

    def words(self, p, floats):
        """f32 elements rounded (nearest even) to the dtype, as words."""
        if self.itemsize == 4:
            return [p.b.bitcast(x, p.i32) for x in floats]
        return [join(p, self.dtype, floats[i], floats[i + 1]) for i in range(0, len(floats), 2)]

    # ---- vectors that the array's edge cuts: element by element
    def edge(self, p, places, targets, move):
        """move(byte offset, byte offset of the target) for each element inside of the vectors that are not whole."""
        for place, target in zip(places, targets):
            cut = p.b.and_(p.b.icmp_signed(">", place.left, p.const(0)), p.b.not_(place.whole))
            with p.when(cut, likely=False):
                for element in p.loop(place.left):
                    inside = p.wide(p.scale(element, self.itemsize))
                    move(p.b.add(place.offset, inside), p.b.add(target.offset, inside))

    def load_one(self, p, address):
        """An element as f32."""
        return p(_LOAD[self.dtype], address, out=[p.f32])

    def store_one(self, p, address, value):
        """Store an f32 as one element, rounded."""
        if self.itemsize == 4:
            p("st.relaxed.sys.global.f32 [$0], $1;", address, value)
        else:
            p(f"{{ .reg .b16 h; cvt.rn.{KIND[self.dtype]}.f32 h, $1; st.relaxed.sys.global.b16 [$0], h; }}", address, value)


def base_of(p, tensor_at, peer):
    """Address of a rank's tensor."""
    table, = p.tensor(tensor_at, "peers")
    return p.of_rank(table, peer)
