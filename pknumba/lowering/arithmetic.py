"""Arithmetic on register tiles: float32, one straight line of instructions for each element (a loop over elements would spill)."""

import operator

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lower_registry
from numba.cuda.typing.templates import AbstractTemplate, signature

from .declare import need
from .ptx import Ptx
from .types import F32, AccumulatorType, RowsType

TILES = (AccumulatorType, RowsType)


def result_of(name, *operands):
    """The type that an operation on accumulators, row vectors and numbers gives. ContractError if they do not fit together."""
    tiles = [t for t in operands if isinstance(t, TILES)]
    text = f"{name}: of {' and '.join(map(str, operands))}."
    need(tiles, f"{text} One operand must be an accumulator or a row vector.")
    for t in operands:
        need(isinstance(t, (*TILES, types.Number, types.Boolean)), f"{text} It takes accumulators, row vectors and numbers. Load a shared "
             "tile first.")
    widest = next((t for t in tiles if isinstance(t, AccumulatorType)), tiles[0])
    for t in tiles:
        need(t.rows == widest.rows and t in (widest, RowsType(widest.rows)), f"{text} Shapes must be equal, or a row vector has the "
             "accumulator's rows.")
    return widest


def spread(p, ty, value, target):
    """The operand's values in the order of ``target``'s elements: rows are repeated over columns, numbers everywhere."""
    if not isinstance(ty, TILES):
        return [p.real(value)] * target.size
    values = p.elements(value)
    if isinstance(ty, AccumulatorType):
        return values
    return [values[target.slot(i)] for i in range(target.size)]


def elementwise(p, target, function, *operands):
    """A register array of function(p, x, ...) for every element.

    Args:
        target: type of the result.
        operands: (type, LLVM value) of each.
    """
    columns = [spread(p, ty, value, target) for ty, value in operands]
    return p.pack([function(p, *values) for values in zip(*columns)])


def _reciprocal(p, x):
    return p("rcp.approx.ftz.f32 $0, $1;", x, out=[F32], pure=True)


def _divide(p, target, x, y):
    """x / y. A divisor that many elements share is inverted once."""
    if y[0] == target:
        return elementwise(p, target, lambda p, a, b: p("div.approx.ftz.f32 $0, $1, $2;", a, b, out=[F32], pure=True), x, y)
    if isinstance(y[0], RowsType):
        inverse = y[0], elementwise(p, y[0], _reciprocal, y)
    else:
        inverse = types.float32, _reciprocal(p, p.real(y[1]))
    return elementwise(p, target, lambda p, a, b: p.b.fmul(a, b), x, inverse)


def _each(function):
    return lambda p, target, *operands: elementwise(p, target, function, *operands)


_OPERATORS = {
    "+": ((operator.add, operator.iadd), _each(lambda p, a, b: p.b.fadd(a, b))),
    "-": ((operator.sub, operator.isub), _each(lambda p, a, b: p.b.fsub(a, b))),
    "*": ((operator.mul, operator.imul), _each(lambda p, a, b: p.b.fmul(a, b))),
    "/": ((operator.truediv, operator.itruediv), _divide),
    "negation": ((operator.neg,), _each(lambda p, a: p.b.fmul(a, ir.Constant(F32, -1.0)))),
}


def _register(name, keys, emit):
    class Template(AbstractTemplate):
        def generic(self, args, kws):
            if any(isinstance(t, TILES) for t in args):
                return signature(result_of(name, *args), *args)

    def lower(context, builder, sig, args):
        p = Ptx(context, builder, sig.args)
        return emit(p, sig.return_type, *[(t, p.plain(v, t)) for t, v in zip(sig.args, args)])

    number = 1 if name == "negation" else 2
    kinds = (*TILES, types.Integer, types.Float, types.Boolean)
    for key in keys:
        typing_registry.register_global(key)(type(f"{key.__name__}_registers", (Template,), {}))
        for first in kinds:
            if number == 1 and first in TILES:
                lower_registry.lower(key, first)(lower)
            for second in kinds if number == 2 else ():
                if first in TILES or second in TILES:
                    lower_registry.lower(key, first, second)(lower)


for _name, _entry in _OPERATORS.items():
    _register(_name, *_entry)
