"""Executor 2: from a kernel's Python to a cubin. The only package that knows numba.

``declare`` is what primitives use; ``types``, ``ptx``, ``register``, ``entry`` and ``compile`` are loaded when the first
kernel is compiled, so that importing pknumba costs nothing.
"""

from .declare import PRIMITIVES, Int, KernelMeta, Pair, Real, constant, need, primitive
from .insist import BEYOND, CHECK, insist

__all__ = ["primitive", "need", "constant", "Int", "Pair", "Real", "KernelMeta", "PRIMITIVES", "insist", "BEYOND", "CHECK",
           "accumulator_type", "rows_type", "operand_type", "integers_type", "is_accumulator", "is_rows",
           "is_operand", "result_of", "elementwise", "build"]


def accumulator_type(rows, cols):
    """The type of a float32 accumulator of one warpgroup."""
    from .types import AccumulatorType
    return AccumulatorType(rows, cols)


def rows_type(rows):
    """The type of a float32 for each row of an accumulator."""
    from .types import RowsType
    return RowsType(rows)


def operand_type(rows, cols, dtype):
    """The type of an A operand in registers."""
    from .types import OperandType
    return OperandType(rows, cols, dtype)


def integers_type(n):
    """The type of n integers in each thread, which the body of a primitive gives as a tuple."""
    from numba.cuda import types
    return types.UniTuple(types.int32, n)


def is_accumulator(argtype):
    """Whether a lowering's argument is an accumulator."""
    from .types import AccumulatorType
    return isinstance(argtype, AccumulatorType)


def is_rows(argtype):
    """Whether a lowering's argument is a row vector."""
    from .types import RowsType
    return isinstance(argtype, RowsType)


def is_operand(argtype):
    """Whether a lowering's argument is an A operand in registers."""
    from .types import OperandType
    return isinstance(argtype, OperandType)


def result_of(name, *operands):
    """See ``arithmetic.result_of``."""
    from .arithmetic import result_of
    return result_of(name, *operands)


def elementwise(p, target, function, *operands):
    """See ``arithmetic.elementwise``."""
    from .arithmetic import elementwise
    return elementwise(p, target, function, *operands)


def build(plan):
    """Compile a plan (see ``entry.Plan``). Returns (cubin bytes, record dict). Raises CompileError or ContractError."""
    from .entry import build as build_entry
    return build_entry(plan)
