"""Executor 2: from a kernel's Python to a cubin. The only package that knows numba.

``declare`` is what primitives use; ``types``, ``ptx``, ``register``, ``entry`` and ``compile`` are loaded when the first
kernel is compiled, so that importing pknumba costs nothing.
"""

from .declare import PRIMITIVES, Int, KernelMeta, Pair, need, primitive

__all__ = ["primitive", "need", "Int", "Pair", "KernelMeta", "PRIMITIVES", "accumulator_type", "build"]


def accumulator_type(rows, cols):
    """The type of a float32 accumulator of one warpgroup."""
    from .types import AccumulatorType
    return AccumulatorType(rows, cols)


def build(plan):
    """Compile a plan (see ``entry.Plan``). Returns (cubin bytes, record dict). Raises CompileError or ContractError."""
    from .entry import build as build_entry
    return build_entry(plan)
