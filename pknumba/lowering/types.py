"""The numba types of what a kernel declares.

A role (its name, scope and workers) is part of the type of its ``g`` and ``s``, and so of every tile, semaphore, tensor
and counter it takes from them. A lowering reads the role there, and a misuse is a typing error.
"""

from llvmlite import ir
from numba.cuda import types
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model

from ..tiles import Tile

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
#: Bytes of the by-value kernel parameter of a tensor: a header and two tensor maps; of counters: two addresses.
TENSOR_BYTES, COUNTERS_BYTES = 384, 128


class Scoped(types.Type):
    """A type that belongs to a role (None before the entry has dispatched to one)."""

    def __init__(self, text, role):
        self.role = role
        super().__init__(f"{type(self).__name__}({text}, {role})")


class TileType(Scoped):
    """Shared memory of one tile or a stack of them; the value is its 32-bit shared address."""

    def __init__(self, ident, shape, dtype, swizzle, role):
        self.ident, self.shape, self.dtype, self.swizzle = ident, tuple(shape), dtype, swizzle
        tile = Tile(self.shape, dtype, swizzle)
        self.nbytes, self.itemsize, self.panel = tile.nbytes, tile.itemsize, tile.panel
        self.panels = tile.panels if len(self.shape) > 1 else 1
        super().__init__((ident, self.shape, dtype, swizzle), role)

    @property
    def rows(self):
        return self.shape[-2]

    @property
    def cols(self):
        return self.shape[-1]

    def __str__(self):
        return f"{self.ident}{list(self.shape)}"


class SemaphoreType(Scoped):
    """One mbarrier, or a ring of them; the value is its shared address."""

    def __init__(self, ident, by, of, role, ring, n=1):
        self.ident, self.by, self.of, self.ring, self.n = ident, by, of, ring, n
        super().__init__((ident, by, of, ring, n), role)

    @property
    def blocks(self):
        """Blocks whose semaphores one arrival reaches."""
        return self.role.cluster if self.of == "cluster" else 1


class SharedType(Scoped):
    """The named tiles and semaphores of a block; the value is the address of its first byte."""

    def __init__(self, places, role):
        self.places = places
        super().__init__(tuple(places.items()), role)


class TensorType(Scoped):
    """Global memory of a rank and its peers; the value is the generic address of its parameter (see ``ptx``)."""

    size = TENSOR_BYTES

    def __init__(self, ident, dtype, role):
        self.ident, self.dtype = ident, dtype
        super().__init__((ident, dtype), role)


class CountersType(Scoped):
    """Counters of a rank and its peers; the value is the generic address of their parameter."""

    size = COUNTERS_BYTES

    def __init__(self, ident, number, role):
        self.ident, self.number = ident, number
        super().__init__((ident, number), role)


class ParameterType(types.Type):
    """A block of bytes that the kernel receives by value (grid constant); the value is its address."""

    def __init__(self, size):
        self.size = size
        super().__init__(f"Parameter({size})")


class AccumulatorType(types.Type):
    """float32 registers of a warpgroup: rows * cols / 128 in each thread, in wgmma's order."""

    def __init__(self, rows, cols):
        self.rows, self.cols, self.size = rows, cols, rows * cols // 128
        super().__init__(f"Accumulator({rows}x{cols})")

    def __str__(self):
        return f"accumulator [{self.rows}, {self.cols}]"

    def slot(self, i):
        """Where a ``RowsType`` value holds the row of element i: each 64 rows have two slots, for rows r and r + 8 of a thread."""
        return 2 * (i // (self.cols // 2)) + (i >> 1 & 1)


class RowsType(types.Type):
    """One float32 for each row of an accumulator: rows / 32 in each thread, the same in the four threads that share a row."""

    def __init__(self, rows):
        self.rows, self.size = rows, rows // 32
        super().__init__(f"Rows({rows})")

    def __str__(self):
        return f"row vector [{self.rows}]"

    def slot(self, i):
        """As for an accumulator."""
        return i


class OperandType(types.Type):
    """16-bit values as wgmma's A operand in registers: rows * cols / 256 pairs in each thread."""

    def __init__(self, rows, cols, dtype):
        self.rows, self.cols, self.dtype, self.size = rows, cols, dtype, rows * cols // 256
        super().__init__(f"Operand({rows}x{cols} {dtype})")

    @property
    def shape(self):
        return self.rows, self.cols

    def __str__(self):
        return f"operand [{self.rows}, {self.cols}]"


class ConfigType(types.Type):
    """A frozen configuration: every field and property is a literal."""

    def __init__(self, value):
        self.value = value
        super().__init__(f"Config({value!r})")


class KernelType(types.Type):
    """A kernel class named inside a role."""

    def __init__(self, kernel):
        self.kernel = kernel
        super().__init__(f"Kernel({kernel.__module__}.{kernel.__qualname__})")


def parameter_llvm(size):
    """LLVM type of a by-value parameter of that many bytes."""
    return ir.ArrayType(I8, size)


def _model(llvm):
    class Model(models.PrimitiveModel):
        def __init__(self, manager, numba_type):
            super().__init__(manager, numba_type, llvm(numba_type))
    return Model


for _type in (TileType, SemaphoreType, SharedType):
    register_model(_type)(_model(lambda t: I32))
for _type in (TensorType, CountersType):
    register_model(_type)(_model(lambda t: I64))
register_model(ParameterType)(_model(lambda t: parameter_llvm(t.size).as_pointer()))
for _type in (AccumulatorType, RowsType):
    register_model(_type)(_model(lambda t: ir.ArrayType(F32, t.size)))
register_model(OperandType)(_model(lambda t: ir.ArrayType(I32, t.size)))
for _type in (ConfigType, KernelType):
    register_model(_type)(models.OpaqueModel)
