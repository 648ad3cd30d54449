"""A stand-in for ``lowering.ptx.Ptx`` that runs what a lowering emits, on the machine's 128 lanes."""

import contextlib

import numpy as np
from llvmlite import ir

from pknumba.lowering import PRIMITIVES
from pknumba.lowering.ptx import Ptx
from pknumba.lowering.types import I64

from .machine import LANES, Machine, bits, floats

__all__ = ["Lanes", "lower"]


def lower(name, *argtypes):
    """(result type or None, emit) of a primitive's lowering for these numba types."""
    rule = PRIMITIVES[name].lower(*argtypes)
    return rule if isinstance(rule, tuple) else (None, rule)


def _integer(x):
    return x if np.asarray(x).dtype == np.uint64 else np.asarray(x).astype(np.uint32)


def _same(x, y):
    x, y = _integer(x), _integer(y)
    return (x, y) if x.dtype == y.dtype else (x.astype(np.uint64), y.astype(np.uint64))


class Builder:
    """The methods of llvmlite's builder that lowerings use, on vectors of lanes."""

    block = None                                # there is one

    def __init__(self, lanes):
        self.lanes = lanes

    def _wrap(function):
        def method(self, x, y):
            x, y = _same(x, y)
            with np.errstate(divide="ignore"):          # in lanes that do not play
                return function(x, y).astype(x.dtype)
        return method

    add, sub, mul = _wrap(np.add), _wrap(np.subtract), _wrap(np.multiply)
    udiv, urem = _wrap(np.floor_divide), _wrap(np.remainder)
    xor = _wrap(np.bitwise_xor)
    shl, lshr = _wrap(np.left_shift), _wrap(np.right_shift)

    def and_(self, x, y):
        return x & y if np.asarray(x).dtype == bool else np.bitwise_and(*_same(x, y))

    def or_(self, x, y):
        return x | y if np.asarray(x).dtype == bool else np.bitwise_or(*_same(x, y))

    def not_(self, x):
        return ~x

    def fadd(self, x, y):
        return floats(x) + floats(y)

    def fsub(self, x, y):
        return floats(x) - floats(y)

    def fmul(self, x, y):
        return floats(x) * floats(y)

    def icmp_signed(self, op, x, y):
        return self._compare(op, _integer(x).view(np.int32), _integer(y).view(np.int32))

    def icmp_unsigned(self, op, x, y):
        return self._compare(op, _integer(x), _integer(y))

    @staticmethod
    def _compare(op, x, y):
        return {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal}[op](x, y)

    def select(self, condition, x, y):
        return np.where(condition, x, y)

    def zext(self, x, ty):
        return np.asarray(x).astype(np.uint64 if ty == I64 else np.uint32)

    def sitofp(self, x, ty):
        return _integer(x).view(np.int32).astype(np.float32)

    def bitcast(self, x, ty):
        return bits(x).view(np.float32) if ty == Ptx.f32 else bits(x)

    def extract_value(self, value, i):
        return value[i]

    def load(self, slot):
        return [v.copy() for v in slot.values] if slot.many else slot.values[0].copy()

    def store(self, value, slot):
        new = value if slot.many else [value]
        slot.values = [np.where(self.lanes.active, v, old) for v, old in zip(new, slot.values)]


class _Slot:
    def __init__(self, values, many):
        self.values, self.many = values, many


class Lanes(Ptx):
    """Ptx on lanes. Attributes: ``machine``, and ``active``, the lanes that play now."""

    def __init__(self, shared_bytes=0, types=()):
        self.b, self.types = Builder(self), types
        self.machine, self.active = Machine(shared_bytes), np.ones(LANES, bool)

    def const(self, n, ty=Ptx.i32):
        if isinstance(n, list):
            return [self.const(x, ty.element) for x in n]
        if ty == Ptx.f32:
            return np.full(LANES, n, np.float32)
        width, dtype = (64, np.uint64) if ty == I64 else (32, np.uint32)
        return np.full(LANES, int(n) & (1 << width) - 1, dtype)

    def real(self, value):
        value = np.asarray(value)
        return np.full(LANES, value, np.float32) if value.ndim == 0 else value if value.dtype == np.float32 else self.b.sitofp(value, None)

    def undefined(self, ty):
        return [np.full(LANES, np.nan, np.float32)] * ty.size

    def pack(self, values):
        return list(values)

    def elements(self, array):
        return list(array)

    def __call__(self, text, *args, out=(), tied=(), pure=False):
        count = len(out) or len(tied)
        operands = [None] * count + list(tied) + list(args)
        for i, value in enumerate(tied):
            operands[i] = value
        written = self.machine.run(text, operands, self.active)
        results = [written.get(i) for i in range(count)]
        return results[0] if count == 1 else results

    def update(self, array, text, *args):
        return self(text, *args, tied=array)

    def switch(self, value, n):
        value = np.unique(value)
        assert value.size == 1 and value[0] < n
        yield int(value[0])

    def loop(self, n):
        n, before = np.broadcast_to(np.asarray(n), LANES).astype(np.int64), self.active
        for i in range(int(n[before].max(initial=0))):
            self.active = before & (i < n)
            yield self.const(i)
        self.active = before

    @contextlib.contextmanager
    def when(self, condition, likely=None):
        before, self.active = self.active, self.active & condition
        yield
        self.active = before

    def variable(self, ty, init):
        many = isinstance(ty, ir.ArrayType)
        kind = ty.element if many else ty
        values = [self.const(x, kind) for x in (init if many else [init])]
        slot = _Slot([np.zeros_like(x) for x in values], many)
        self.b.store(values if many else values[0], slot)
        return slot
