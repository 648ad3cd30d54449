"""Functions that networks put between two products, of a register tile: float32, element by element."""

import re

import numpy as np

from .. import interpreter
from ..interpreter import Accumulator
from ..lowering import constant, is_accumulator, need, primitive

_ROOT = (2 / np.pi) ** 0.5


def _silu(x):
    return x / (1 + np.exp(-x))


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + 0.044715 * x ** 3)))


#: Name -> NumPy function.
FUNCTIONS = {"none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "silu": _silu, "gelu": _gelu}

#: Name -> PTX of x = function(x), with registers t and u.
_TEXTS = {
    "relu": "max.NaN.f32 x, x, 0f00000000;",
    "silu": "mul.f32 t, x, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 t, t; mul.f32 x, x, t;",
    "gelu": "mul.f32 t, x, x; fma.rn.f32 t, t, 0f3D122279, 0f3F4C422A; mul.f32 t, t, x; tanh.approx.f32 t, t; mul.f32 u, x, 0f3F000000; "
            "fma.rn.f32 x, u, t, u;"}


@primitive(scope="warpgroup")
def activate(acc, kind):
    """kind(acc), element by element.

    Args:
        acc: register tile, after ``mma_wait(acc, 0)`` if it was multiplied. kind: constant: "none"; "relu"; "silu", x / (1 + exp(-x));
            "gelu", x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))). The device errs by some 2^-11 of the largest factor.

    PTX: max.NaN.f32; ex2.approx.ftz.f32, rcp.approx.ftz.f32; tanh.approx.f32.
    """
    if kind == "none":
        return acc
    with np.errstate(over="ignore", invalid="ignore"):
        return Accumulator.of(FUNCTIONS[kind](interpreter.values(acc)).astype(np.float32))


@activate.lowering
def _(acc, kind):
    name = constant(kind, "activate: kind")
    need(is_accumulator(acc) and name in FUNCTIONS, f"activate: {name!r} of {acc}. It takes a register tile and one of "
         f"{', '.join(FUNCTIONS)}.")

    if name == "none":
        return acc, lambda p, acc_v, _: acc_v
    lines = [re.sub(r"\bx\b", f"${i}", _TEXTS[name]) for i in range(acc.size)]        # in place: twice the registers would spill
    text = "{ .reg .f32 t, u; " + "\n".join(lines) + " }"
    return acc, lambda p, acc_v, _: p.update(acc_v, text)
