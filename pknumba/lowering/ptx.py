"""What a lowering writes with: inline PTX, plus llvmlite's builder as ``p.b``."""

import contextlib

from llvmlite import ir
from numba.cuda import cgutils, types

from ..tiles import HEADER
from .bounded import Bounded
from .declare import need
from .recording import LANES
from .types import F32, I32, I64

#: Where values are written that nobody reads, so that the assembler computes them there and then.
PIN = HEADER - 8
#: Byte offsets in a tensor's parameter; its tensor maps follow from MAPS on, 128 bytes each.
#: TABLES: device addresses of tables with every rank's tensor map, one for each box that is moved to or from peers.
POINTER, PEERS, PITCH, ROWS, COLS, WORLD, RANK, MULTICAST, TABLES, MAPS = 0, 8, 16, 24, 28, 32, 36, 40, 48, 128
#: Byte offsets in the parameter of counters: own counters, the table of every rank's, world size, rank.
OWN, TABLE, COUNTERS_WORLD, COUNTERS_RANK = 0, 8, 16, 20
#: Tensor -> boxes (rows, columns, swizzle) that the copy engine moves, in the order of its tensor maps: the host encodes
#: the maps from this. Filled while a kernel is lowered.
BOXES = {}
#: The same for boxes of peers' memory, whose maps lie in tables.
PEER_BOXES = {}
SLOTS = 2

_LETTER = {I32: "r", I64: "l", F32: "f"}


def _slot(recorded, tensor, box, swizzle):
    """Number of the tensor's map for boxes of that shape, recorded if it is new."""
    boxes, key = recorded.setdefault(tensor.ident, []), (*box, swizzle)
    if key not in boxes:
        boxes.append(key)
    need(len(boxes) <= SLOTS, f"tensor {tensor.ident}: moves boxes {boxes}. A tensor has room for {SLOTS} tensor maps. Use tiles "
         "of equal shape.")
    return boxes.index(key)


class Ptx(Bounded):
    """Writer of one primitive's device code.

    Attributes:
        b: llvmlite's IRBuilder.
        types: numba types of the primitive's arguments.
    """

    i32, i64, f32 = I32, I64, F32
    PIN = PIN

    def __init__(self, context, builder, argtypes):
        self.context, self.b, self.types = context, builder, argtypes

    # ---- values
    def const(self, n, ty=I32):
        return ir.Constant(ty, n)

    def scale(self, value, n):
        """value * n."""
        return self.b.mul(value, self.const(n))

    def wide(self, value):
        """A non-negative 32-bit value as 64 bits."""
        return self.b.zext(value, I64)

    def undefined(self, ty):
        return ir.Constant(self.context.get_value_type(ty), ir.Undefined)

    def plain(self, value, ty):
        """Integers as i32 (literals as constants), booleans as 0 or 1, floats as f32, tuples as lists, strings and None as Python's."""
        if isinstance(ty, (types.IntegerLiteral, types.BooleanLiteral)):
            return self.const(int(ty.literal_value))
        if isinstance(ty, (types.StringLiteral, types.NoneType)):
            return getattr(ty, "literal_value", None)
        if isinstance(ty, types.BaseTuple):
            return [self.plain(self.b.extract_value(value, i), t) for i, t in enumerate(ty)]
        if isinstance(ty, types.Boolean):
            return self.b.zext(value, I32)
        if isinstance(ty, types.Integer) and ty.bitwidth > 32:
            return self.b.trunc(value, I32)
        return self.real(value) if isinstance(ty, types.Float) else value

    def real(self, value):
        """A number (LLVM or Python) as f32."""
        if not hasattr(value, "type"):
            return self.const(float(value), F32)
        if isinstance(value, ir.Constant) and value.type != F32:
            return self.const(float(value.constant), F32)
        if isinstance(value.type, ir.IntType):
            return self.b.sitofp(value, F32)
        return value if value.type == F32 else self.b.fptrunc(value, F32)

    # ---- instructions
    def __call__(self, text, *args, out=(), tied=(), pure=False):
        """Inline PTX. ``$0..`` are the results, then the values tied to them, then args.

        Args:
            out: LLVM types of the results (default: those of ``tied``).
            tied: values that the text reads and overwrites as results.
            pure: no side effect and no memory access that may change: may be moved and merged.
        """
        out = list(out) or [v.type for v in tied]
        constraints = ["=" + _LETTER[t] for t in out] + [str(i) for i in range(len(tied))] + [_LETTER[a.type] for a in args]
        constraints += [] if pure else ["~{memory}"]
        result = ir.VoidType() if not out else out[0] if len(out) == 1 else ir.LiteralStructType(out)
        values = [*tied, *args]
        function = ir.FunctionType(result, [v.type for v in values])
        return self.b.call(ir.InlineAsm(function, text, ",".join(constraints), side_effect=not pure), values)

    def update(self, array, text, *args):
        """PTX that reads and writes every element of a register array (the first operands). Returns the new array."""
        values = self.elements(array)
        out = self(text, *args, tied=values)
        return self.pack([self.b.extract_value(out, i) for i in range(len(values))])

    def elements(self, array):
        """The values of a register array."""
        return [self.b.extract_value(array, i) for i in range(array.type.count)]

    def pack(self, values):
        """A register array of these values."""
        result = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
        for i, v in enumerate(values):
            result = self.b.insert_value(result, v, i)
        return result

    def field(self, ty, address, offset):
        """A field of a parameter or table, which never changes while the kernel runs."""
        return self(f"ld.global.{'b64' if ty is I64 else 'b32'} $0, [$1+{offset}];", address, out=[ty], pure=True)

    def parameter(self, ty, address, offset):
        """A field of a by-value parameter: its generic address lies in the parameter bank."""
        return self(f"ld.{'b64' if ty is I64 else 'b32'} $0, [$1+{offset}];", address, out=[ty], pure=True)

    def of_rank(self, table, rank):
        """A rank's address, of a table of all ranks'."""
        return self.field(I64, self.b.add(table, self.wide(self.b.shl(rank, self.const(3)))), 0)

    def tensor_map(self, address, tensor, box, swizzle):
        """Address of the tensor's map for boxes of that shape."""
        return self.b.add(address, self.const(MAPS + 128 * _slot(BOXES, tensor, box, swizzle), I64))

    def peer_map(self, address, tensor, box, swizzle, peer):
        """Address of the map of a rank's part of the tensor."""
        table = self.parameter(I64, address, TABLES + 8 * _slot(PEER_BOXES, tensor, box, swizzle))
        return self.b.add(table, self.wide(self.b.shl(peer, self.const(7))))

    def tensor(self, address, *names):
        """Fields of a tensor's parameter: pointer (own memory), peers (table of every rank's), multicast, pitch (bytes), rows, cols,
        world, rank."""
        places = dict(pointer=POINTER, peers=PEERS, pitch=PITCH, multicast=MULTICAST, rows=ROWS, cols=COLS, world=WORLD, rank=RANK)
        return [self.parameter(I32 if places[n] in (ROWS, COLS, WORLD, RANK) else I64, address, places[n]) for n in names]

    # ---- control
    def switch(self, value, n):
        """``for i in p.switch(value, n)``: emit the code of value == i. A constant value emits only its own."""
        if isinstance(value, ir.Constant):
            yield value.constant
            return
        blocks, end = [self.b.append_basic_block() for _ in range(n)], self.b.append_basic_block()
        table = self.b.switch(value, blocks[-1])
        for i, block in enumerate(blocks):
            if i < n - 1:
                table.add_case(self.const(i), block)
            self.b.position_at_end(block)
            yield i
            self.b.branch(end)
        self.b.position_at_end(end)

    def loop(self, n):
        """``for i in p.loop(n)``: emit the body of a loop in which i counts from 0 to n - 1 at run time."""
        with cgutils.for_range(self.b, n) as loop:
            yield loop.index

    def when(self, condition, likely=None):
        """``with p.when(i1 value)``."""
        return self.b.if_then(condition, likely=likely)

    def array(self, ty, n):
        """LLVM type of n registers."""
        return ir.ArrayType(ty, n)

    def variable(self, ty, init):
        """A slot that holds ``init`` from here on, for ``b.load`` and ``b.store``; the optimizer turns it into registers."""
        slot = cgutils.alloca_once(self.b, ty)
        self.b.store(ir.Constant(ty, init), slot)
        return slot

    # ---- threads
    def group(self):
        """Number of this warpgroup. Through a shuffle: a branch on a bare thread number makes the assembler take every
        later loop counter of the role for divergent (wgmma descriptors then go through 16 R2UR a step)."""
        return self("{ .reg .u32 t; mov.u32 t, %tid.x; shr.u32 t, t, 7; shfl.sync.idx.b32 $0, t, 0, 31, -1; }", out=[I32])

    def thread(self):
        """Number of this thread in its warpgroup."""
        return self.b.and_(self("mov.u32 $0, %tid.x;", out=[I32], pure=True), self.const(127))

    def lane(self):
        return self("mov.u32 $0, %laneid;", out=[I32], pure=True)

    def leader(self, scope):
        """``with p.leader(scope)``: one thread of the worker."""
        if scope == "thread":
            return contextlib.nullcontext()
        rank = self.b.and_(self.thread(), self.const(LANES[scope]))
        return self.b.if_then(self.b.icmp_unsigned("==", rank, self.const(0)))

    @contextlib.contextmanager
    def leaders(self, scope, n):
        """``with p.leaders(scope, n) as i``: n threads of the worker at once, i = 0 .. n - 1; a single thread does all in turn."""
        if scope == "thread":
            with cgutils.for_range(self.b, self.const(n)) as loop:
                yield loop.index
        else:
            number = self.thread() if scope == "warpgroup" else self.lane()
            with self.when(self.b.icmp_unsigned("<", number, self.const(n))):
                yield number

    def seat(self):
        """Number of this block in its cluster."""
        return self("mov.u32 $0, %cluster_ctarank;", out=[I32], pure=True)

    def sync_worker(self, role):
        """All threads of the worker meet. Barrier numbers are literal: a register operand would reserve all sixteen."""
        if role.scope == "warp":
            self("bar.warp.sync 0xffffffff;")
        elif role.scope == "warpgroup":
            for i in self.switch(self.group() if role.workers > 1 else self.const(0), role.workers):
                self(f"bar.sync {1 + i}, 128;")

    # ---- shared memory
    def shared_base(self):
        """Shared address of the block's first tile byte, on the 1024 bytes that a 128-byte swizzle repeats after."""
        module = self.b.module
        memory = module.globals.get("pknumba_shared")
        if memory is None:
            memory = cgutils.add_global_variable(module, ir.ArrayType(ir.IntType(8), 0), "pknumba_shared", addrspace=3)
            memory.linkage, memory.align = "external", 1024
        generic = self.b.ptrtoint(self.b.addrspacecast(memory, ir.IntType(8).as_pointer(), "generic"), I64)
        address = self("{ .reg .u64 t; cvta.to.shared.u64 t, $1; cvt.u32.u64 $0, t; }", generic, out=[I32], pure=True)
        return self.b.and_(self.b.add(address, self.const(1023)), self.const(-1024))
