"""PTX for a piece of a box as the 16-byte units that the lanes of a warp move: what lowerings of collectives share.

A box is what one rank sends another: n0 x n1 x n2 rows of neighbouring elements, each cut into units of 16 bytes of which
the last may be partly filled. A piece is ``32 * unroll`` units, neighbours in row order; lane l has units l, l + 32, ...
"""

from collections import namedtuple

from ..lowering import need
from ..tiles import ITEMSIZE
from .elements import LARGER, SMALLER
from .halves import KIND, join, split

#: Bytes of a unit.
UNIT = 16
#: Byte offsets in a tensor's parameter, after what ``lowering.ptx`` has there: strides of rows, of slots,
#: the alignment of every unit in bytes.
STRIDES, STEP, ALIGNED = (64, 72, 80), 88, 96
#: One unit of a lane. ``index``: (i0, i1, i2) of its row; ``at``: bytes from the row's start; ``left``: elements in it, possibly 0.
Unit = namedtuple("Unit", "index at left")

DTYPES = ("bfloat16", "float16", "float32", "int32")
_LOAD = {2: "{ .reg .b16 h; ld.relaxed.sys.global.b16 h, [$1]; cvt.u32.u16 $0, h; }", 4: "ld.relaxed.sys.global.b32 $0, [$1];"}
_STORE = {2: "{ .reg .b16 h; cvt.u16.u32 h, $1; st.relaxed.sys.global.b16 [$0], h; }", 4: "st.relaxed.sys.global.b32 [$0], $1;"}


class Units:
    """Writer of the code of one lane for tensors of one dtype."""

    def __init__(self, name, dtype, unroll=1):
        need(dtype in DTYPES, f"{name}: of {dtype}. It takes {', '.join(DTYPES)}.")
        self.dtype, self.itemsize, self.unroll, self.real = dtype, ITEMSIZE[dtype], unroll, dtype != "int32"
        self.width = UNIT // self.itemsize

    # ---- where a unit lies
    def _find(self, p, box, number):
        """((i0, i1, i2) of a unit's row, its number in the row)."""
        b, (n1, n2, per_row, *_) = p.b, box
        row = b.udiv(number, per_row)
        outer = b.udiv(row, n2)
        i0 = b.udiv(outer, n1)
        return (i0, b.sub(outer, b.mul(i0, n1)), b.sub(row, b.mul(outer, n2))), b.sub(number, b.mul(row, per_row))

    def _left(self, p, box, number, at):
        """Elements of a unit, which is the at-th of its row."""
        b, (*_, per_row, last, total) = p.b, box
        left = b.select(b.icmp_unsigned("==", b.add(at, p.const(1)), per_row), last, p.const(self.width))
        return b.select(b.icmp_unsigned("<", number, total), left, p.const(0))

    def _bytes(self, p, units):
        return p.b.mul(p.wide(units), p.const(UNIT, p.i64))

    def unit(self, p, box, number):
        """The unit of that number of a box (n1, n2, units of a row, elements of a row's last unit, units in all)."""
        index, at = self._find(p, box, number)
        return Unit(index, self._bytes(p, at), self._left(p, box, number, at))

    def places(self, p, box, piece, tensors):
        """The lane's units of a piece: ([their offsets in each of the tensors], elements of each).

        Where a piece lies in one row, or in rows that are equally far apart, its place is looked for once: divisions for each unit cost
        more than the moves.
        """
        b, n = p.b, self.unroll
        first = p.scale(piece, 32 * n)
        found = [p.variable(p.array(p.i64, n), [0] * n) for _ in tensors]
        lefts = p.variable(p.array(p.i32, n), [0] * n)
        numbers = [b.add(b.add(first, p.lane()), p.const(32 * i)) for i in range(n)]

        def keep(ats, offsets):
            b.store(p.pack([self._left(p, box, x, at) for x, at in zip(numbers, ats)]), lefts)
            for slot, tensor_at in zip(found, tensors):
                b.store(p.pack(offsets(tensor_at)), slot)

        def from_start(index, begin):
            at = b.add(begin, p.lane())
            keep([b.add(at, p.const(32 * i)) for i in range(n)], lambda tensor_at: [
                b.add(self.offset(p, tensor_at, Unit(index, self._bytes(p, at), None)), p.const(32 * UNIT * i, p.i64)) for i in range(n)])

        single = b.icmp_unsigned("==", box[2], box[4])
        with p.when(single):
            from_start((), first)
        with p.when(b.not_(single)):
            index, begin = self._find(p, box, first)
            straight = b.icmp_unsigned("<=", b.add(begin, p.const(32 * n)), box[2])
            with p.when(straight):
                from_start(index, begin)
            with p.when(b.not_(straight)):
                self._several(p, box, numbers, index, begin, keep)
        return [p.elements(b.load(slot)) for slot in found], p.elements(b.load(lefts))

    def _several(self, p, box, numbers, index, begin, keep):
        """A piece of several rows, which begins ``begin`` units into the one at ``index``. keep: what is done with numbers in rows and
        offsets, as in ``places``."""
        b = p.b
        rows, by = self._rows(p, box)
        ahead = b.add(p.scale(b.add(rows, p.const(1)), self.unroll), p.const(1))            # rows that it may reach into
        even = b.icmp_unsigned("<", b.add(index[2], ahead), box[1])
        with p.when(even):
            first = b.add(begin, p.lane())
            ats, turned = self._columns(p, box, first, by)
            start = Unit((*index[:2], b.add(index[2], b.udiv(first, box[2]))), self._bytes(p, ats[0]), None)
            keep(ats, lambda tensor_at: self._steps(p, box, tensor_at, start, turned, (rows, by)))
        with p.when(b.not_(even)):
            places = [self._find(p, box, x) for x in numbers]
            keep([at for _, at in places], lambda tensor_at: [
                self.offset(p, tensor_at, Unit(where, self._bytes(p, at), None)) for where, at in places])

    def _rows(self, p, box):
        """(whole rows, further units) from one of a lane's units to the next."""
        rows = p.b.udiv(p.const(32), box[2])
        return rows, p.b.sub(p.const(32), p.b.mul(rows, box[2]))

    def _columns(self, p, box, first, by):
        """([number in its row of each of a lane's units, the first of which is that far from a row's start], [of each but the first,
        whether a row ends on the way to it besides whole ones])."""
        b, ats, turned = p.b, [p.b.urem(first, box[2])], []
        for _ in range(self.unroll - 1):
            at = b.add(ats[-1], by)
            turned.append(b.icmp_unsigned(">=", at, box[2]))
            ats.append(b.select(turned[-1], b.sub(at, box[2]), at))
        return ats, turned

    def _steps(self, p, box, tensor_at, first, turned, ahead):
        """Offsets of a lane's units, from the first on, in rows that are equally far apart. ahead: as ``_rows``."""
        b, pitch = p.b, p.parameter(p.i64, tensor_at, STRIDES[2])
        one = b.add(b.mul(p.wide(ahead[0]), pitch), self._bytes(p, ahead[1]))
        more = b.add(one, b.sub(pitch, self._bytes(p, box[2])))
        offsets = [self.offset(p, tensor_at, first)]
        for over in turned:
            offsets.append(b.add(offsets[-1], b.select(over, more, one)))
        return offsets

    def offset(self, p, tensor_at, unit):
        """Bytes from the start of a slot to the unit."""
        total = unit.at
        for i, place in zip(unit.index, STRIDES):
            total = p.b.add(total, p.b.mul(p.wide(i), p.parameter(p.i64, tensor_at, place)))
        return total

    def base(self, p, tensor_at, slot, peer=None):
        """Address of a slot, in the memory of rank ``peer`` (None: the own)."""
        if peer is None:
            start, = p.tensor(tensor_at, "pointer")
        else:
            table, = p.tensor(tensor_at, "peers")
            start = p.of_rank(table, peer)
        return p.b.add(start, p.b.mul(p.wide(slot), p.parameter(p.i64, tensor_at, STEP)))

    def multicast(self, p, tensor_at, slot):
        """Address of a slot in the memory of all ranks at once."""
        start, = p.tensor(tensor_at, "multicast")
        return p.b.add(start, p.b.mul(p.wide(slot), p.parameter(p.i64, tensor_at, STEP)))

    def switch(self, verb, op=None):
        """The instruction of the switch for whole units: "ld_reduce" or "st"."""
        kind = "f32" if self.itemsize == 4 else KIND[self.dtype] + "x2"
        how = "" if op is None else f".{'add' if op == 'sum' else op}{'.acc::f32' if op == 'sum' and self.itemsize == 2 else ''}"
        return f"multimem.{verb}.relaxed.sys.global{how}.v4.{kind}"

    def aligned(self, p, tensor_at):
        return p.b.icmp_unsigned(">=", p.parameter(p.i32, tensor_at, ALIGNED), p.const(UNIT))

    def all_aligned(self, p, tensors):
        """Whether every unit of all these tensors starts on 16 bytes."""
        first, *rest = (self.aligned(p, at) for at in tensors)
        for other in rest:
            first = p.b.and_(first, other)
        return first

    def whole(self, p, left, aligned):
        """Whether a unit with that many elements moves as one vector."""
        return p.b.and_(p.b.icmp_unsigned("==", left, p.const(self.width)), aligned)

    # ---- whole units: four 32-bit words each
    def load(self, p, base, offsets, whole, instruction="ld.relaxed.sys.global.v4.b32"):
        """Words of the units that are whole, zero for others; all loads are issued before the first is used."""
        n = len(offsets)
        lines = [f"{{ .reg .u64 q; .reg .pred p<{n}>; .reg .b32 v<{4 * n}>;"]
        for i in range(n):
            words = [f"v{4 * i + j}" for j in range(4)]
            lines.append(f"setp.ne.u32 p{i}, ${4 * n + 2 + 2 * i}, 0; add.u64 q, ${4 * n}, ${4 * n + 1 + 2 * i}; " +
                         " ".join(f"mov.b32 {w}, 0;" for w in words) + f" @p{i} {instruction} {{{', '.join(words)}}}, [q];")
        lines.append(" ".join(f"mov.b32 ${i}, v{i};" for i in range(4 * n)) + " }")
        flat = [x for pair in zip(offsets, whole) for x in (pair[0], p.b.zext(pair[1], p.i32))]
        out = p("\n".join(lines), base, *flat, out=[p.i32] * (4 * n))
        return [p.b.extract_value(out, i) for i in range(4 * n)]

    def store(self, p, base, offsets, whole, words, instruction="st.relaxed.sys.global.v4.b32"):
        """Store the units that are whole."""
        text = f"{{ .reg .pred p; setp.ne.u32 p, $5, 0; @p {instruction} [$0], {{$1, $2, $3, $4}}; }}"
        for i, (offset, all_of_it) in enumerate(zip(offsets, whole)):
            p(text, p.b.add(base, offset), *words[4 * i:4 * i + 4], p.b.zext(all_of_it, p.i32))

    # ---- others: element by element, as the low bits of a word
    def load_element(self, p, address):
        return p(_LOAD[self.itemsize], address, out=[p.i32])

    def store_element(self, p, address, bits):
        p(_STORE[self.itemsize], address, bits)

    def load_elements(self, p, address, left):
        """The four words of a unit of which ``left`` elements are there, zero else; all loads are issued before the first is used."""
        n, bits = self.width, 8 * self.itemsize
        lines = [f"{{ .reg .pred p<{n}>; .reg .b{bits} e<{n}>;"]
        for e in range(n):
            lines.append(f"setp.gt.s32 p{e}, $5, {e}; mov.b{bits} e{e}, 0; @p{e} ld.relaxed.sys.global.b{bits} e{e}, "
                         f"[$4+{self.itemsize * e}];")
        lines += [f"mov.b32 ${i}, {{e{2 * i}, e{2 * i + 1}}};" if bits == 16 else f"mov.b32 ${i}, e{i};" for i in range(4)]
        out = p("\n".join([*lines, "}"]), address, left, out=[p.i32] * 4)
        return [p.b.extract_value(out, i) for i in range(4)]

    def store_elements(self, p, address, left, words):
        """Four words to a unit of which ``left`` elements are there."""
        n, bits = self.width, 8 * self.itemsize
        lines = [f"{{ .reg .pred p<{n}>; .reg .b{bits} e<{n}>;"]
        lines += [f"mov.b32 {{e{2 * i}, e{2 * i + 1}}}, ${2 + i};" if bits == 16 else f"mov.b32 e{i}, ${2 + i};" for i in range(4)]
        for e in range(n):
            lines.append(f"setp.gt.s32 p{e}, $1, {e}; @p{e} st.relaxed.sys.global.b{bits} [$0+{self.itemsize * e}], e{e};")
        p("\n".join([*lines, "}"]), address, left, *words)

    def others(self, p, box, piece, aligned):
        """``for unit in units.others(...)``: emit the code for a unit that is not whole; its elements are counted by ``left``.

        Nothing is looked for in boxes without such units.
        """
        b = p.b
        first = b.add(p.lane(), p.scale(piece, 32 * self.unroll))
        none = b.and_(aligned, b.icmp_unsigned("==", box[3], p.const(self.width)))
        for i in p.loop(b.select(none, p.const(0), p.const(self.unroll))):
            unit = self.unit(p, box, b.add(first, p.scale(i, 32)))
            some = b.icmp_unsigned(">", unit.left, p.const(0))
            with p.when(b.and_(some, b.not_(self.whole(p, unit.left, aligned)))):
                yield unit

    # ---- arithmetic
    def values(self, p, words):
        """The elements of words as numbers: float32, or int32."""
        if not self.real:
            return words
        if self.itemsize == 4:
            return [p.b.bitcast(w, p.f32) for w in words]
        return [x for w in words for x in split(p, self.dtype, w)]

    def words(self, p, values):
        """Numbers rounded (nearest even) to the dtype, as words."""
        if not self.real:
            return values
        if self.itemsize == 4:
            return [p.b.bitcast(x, p.i32) for x in values]
        return [join(p, self.dtype, values[i], values[i + 1]) for i in range(0, len(values), 2)]

    def variable(self, p, n):
        """A slot for n numbers."""
        return p.variable(p.array(p.f32, n), [0.0] * n) if self.real else p.variable(p.array(p.i32, n), [0] * n)

    def value(self, p, bits):
        """A number of an element's bits."""
        return self.values(p, [bits])[0]

    def bits(self, p, value):
        """The bits of an element, rounded from a number."""
        if self.itemsize == 4:
            return self.words(p, [value])[0]
        return p(f"{{ .reg .b16 h; cvt.rn.{KIND[self.dtype]}.f32 h, $1; cvt.u32.u16 $0, h; }}", value, out=[p.i32], pure=True)

    def combine(self, p, op, a, b):
        """The sum, the smaller or the larger of two numbers."""
        if self.real:
            return p.b.fadd(a, b) if op == "sum" else (SMALLER if op == "min" else LARGER)(p, a, b)
        if op == "sum":
            return p.b.add(a, b)
        return p.b.select(p.b.icmp_signed("<" if op == "min" else ">", a, b), a, b)
