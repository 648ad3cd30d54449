"""Reductions and broadcasts of a symmetric tensor's window over all ranks, by one warp.

By default through loads from and stores to every peer: sums are made in float32 in rank order, whoever makes them, and
rounded once, so the result has the same bits on every rank and in every run. With ``multicast=True`` the switch adds and
distributes (the order of its additions is its own; still float32, rounded once); the tensor must then have a multicast
address. Whatever is read must have been written and signalled by every rank (``wait_until``), and nobody may touch what is
written meanwhile.
"""

from functools import reduce as fold

import numpy as np

from ..errors import ProtocolError
from ..interpreter import read, write
from ..lowering import constant, need, primitive
from ..tiles import ITEMSIZE
from .elements import LARGER, SMALLER
from .halves import KIND
from .vectors import Vectors, base_of

#: op -> (NumPy function, PTX writer, value that changes nothing, name in multimem).
OPS = {"sum": (np.add, lambda p, a, b: p.b.fadd(a, b), 0.0, "add"), "min": (np.minimum, SMALLER, float("inf"), "min"),
       "max": (np.maximum, LARGER, float("-inf"), "max")}


def _check(name, tensor, shape, op="sum", multicast=False):
    dtype = str(tensor.dtype)
    need(dtype in (*KIND, "float32") and shape[1] * ITEMSIZE[dtype] % 16 == 0, f"{name}: windows {tuple(shape)} of {dtype}. It takes "
         "bfloat16, float16 or float32, and rows of a multiple of 16 bytes.")
    need(op in OPS, f"{name}: op = {op!r}. It must be one of {', '.join(OPS)}.")
    need(not multicast or op == "sum" or dtype != "float32", f"{name}: {op} of float32 by multicast. The switch has min and max for "
         "16-bit floats only. Use multicast=False.")


def _total(op, tensor, coord, shape):
    """That window of every rank combined, float32."""
    windows = [tensor.window(coord, shape, peer) for peer in range(tensor.world_size)]
    with np.errstate(all="ignore"):
        return fold(OPS[op][0], [read(w).astype(np.float32) for w in windows])


@primitive(scope="warp")
def all_reduce(tensor, coord, shape, op="sum", multicast=False):
    """That window of every rank's tensor becomes their combination, rounded once. One warp of one rank calls it for a window.

    Args:
        tensor: symmetric ``g.name`` (M, N), bfloat16, float16 or float32.
        coord: (row, column) counted in windows of this shape; the part beyond the edge is left alone.
        shape: constant (rows, cols); a row has a multiple of 16 bytes.
        op: constant, "sum", "min" or "max". multicast: constant; float32 then has "sum" only.

    Raises ContractError for another op, dtype or shape.

    PTX: ld.relaxed.sys.global.v4.b32 from and st.relaxed.sys.global.v4.b32 to every rank, element by element at the edge; or
    multimem.ld_reduce.relaxed.sys.global and multimem.st.relaxed.sys.global in 16-byte vectors.
    """
    _check("all_reduce", tensor, shape, op, multicast)
    total = _total(op, tensor, coord, shape)
    for peer in range(tensor.world_size):
        write(tensor.window(coord, shape, peer), total)


@all_reduce.lowering
def _(tensor, coord, shape, op, multicast):
    run = _window("all_reduce", tensor, shape, _Gather(op, multicast), _Spread(multicast))
    return lambda p, tensor_at, coord, *_: run(p, tensor_at, coord)


@primitive(scope="warp")
def reduce(tensor, coord, shape, out=None, out_coord=None, op="sum", multicast=False):
    """A window of this rank's ``out`` becomes the combination of that window of every rank's ``tensor``, rounded once.

    Args:
        tensor, coord, shape, op, multicast: as in ``all_reduce``.
        out: tensor of this rank with the same dtype; None: ``tensor`` itself.
        out_coord: its (row, column) in windows; None: ``coord``. The edges of both arrays must cut the windows alike.

    Raises ContractError for another op, dtype or shape; ProtocolError (interpreter) for windows cut differently.

    PTX: ld.relaxed.sys.global.v4.b32 from every rank or multimem.ld_reduce.relaxed.sys.global; st.relaxed.sys.global.v4.b32.
    """
    _check("reduce", tensor, shape, op, multicast)
    source = tensor.window(coord, shape)
    target = (tensor if out is None else out).window(coord if out_coord is None else out_coord, shape)
    if target.inside != source.inside:
        raise ProtocolError(f"reduce: {source.name} has {source.inside} elements inside its array, {target.name} {target.inside}. The "
                            "edges must cut both windows alike.")
    write(target, _total(op, tensor, coord, shape))


@reduce.lowering
def _(tensor, coord, shape, out, out_coord, op, multicast):
    given = hasattr(out, "ident")
    need(not given or out.dtype == tensor.dtype, f"{tensor.role.name}: reduce of {tensor.dtype} {tensor.ident} into {out}. Both have one "
         "dtype.")
    run = _window("reduce", tensor, shape, _Gather(op, multicast), _Own())

    def emit(p, tensor_at, coord, _, out_at, out_coord, *__):
        return run(p, tensor_at, coord, out_at if given else tensor_at, out_coord or coord)
    return emit


@primitive(scope="warp")
def broadcast(tensor, coord, shape, multicast=False):
    """That window of every rank's tensor becomes this rank's.

    Args:
        tensor, coord, shape, multicast: as in ``all_reduce``.

    Raises ContractError for another dtype or shape.

    PTX: ld.relaxed.sys.global.v4.b32, then st.relaxed.sys.global.v4.b32 to every other rank or multimem.st.relaxed.sys.global.
    """
    _check("broadcast", tensor, shape)
    values = read(tensor.window(coord, shape))
    for step in range(1, tensor.world_size):
        write(tensor.window(coord, shape, (tensor.rank + step) % tensor.world_size), values)


@broadcast.lowering
def _(tensor, coord, shape, multicast):
    run = _window("broadcast", tensor, shape, _Read(), _Spread(multicast, others=True))
    return lambda p, tensor_at, coord, *_: run(p, tensor_at, coord)


@primitive(scope="warp")
def take(tensor, coord, shape, out):
    """That window of this rank's ``out`` becomes that of its ``tensor``, which becomes zero.

    Args:
        tensor, coord, shape: as in ``all_reduce``. out: tensor of this rank with the same dtype, cut alike by its edges.

    Raises ContractError for another dtype or shape; ProtocolError (interpreter) for windows cut differently.

    PTX: ld.relaxed.sys.global.v4.b32, st.relaxed.sys.global.v4.b32.
    """
    _check("take", tensor, shape)
    source, target = tensor.window(coord, shape), out.window(coord, shape)
    if target.inside != source.inside:
        raise ProtocolError(f"take: {source.name} has {source.inside} elements inside its array, {target.name} {target.inside}. The "
                            "edges must cut both windows alike.")
    write(target, read(source))
    write(source, 0)


@take.lowering
def _(tensor, coord, shape, out):
    extent = constant(shape, "take: shape")
    _check("take", tensor, extent)
    part = Vectors(tensor, extent)

    def emit(p, tensor_at, coord, _, out_at):
        here, there = (p.tensor(at, "pointer")[0] for at in (tensor_at, out_at))

        def move(offset, target):
            part.store_one(p, p.b.add(there, target), part.load_one(p, p.b.add(here, offset)))
            part.store_one(p, p.b.add(here, offset), p.const(0.0, p.f32))

        for step in p.loop(p.const(part.steps)):
            places, targets = part.common(p, part.places(p, tensor_at, coord, step), part.places(p, out_at, coord, step))
            words = part.load(p, _LOAD, here, places)
            part.store(p, _STORE, there, targets, words)
            part.store(p, _STORE, here, places, [p.const(0)] * len(words))
            part.edge(p, places, targets, move)
    return emit


_LOAD, _STORE = "ld.relaxed.sys.global.v4.b32", "st.relaxed.sys.global.v4.b32"


class _Read:
    """Where the values come from: this rank's own window."""

    def check(self, name, tensor, shape):
        _check(name, tensor, shape)

    def vectors(self, p, part, tensor_at, places):
        return part.load(p, _LOAD, *p.tensor(tensor_at, "pointer"), places)

    def one(self, p, part, tensor_at, offset):
        return part.load_one(p, p.b.add(*p.tensor(tensor_at, "pointer"), offset))


class _Gather:
    """Where the values come from: every rank's window, combined."""

    def __init__(self, op, multicast):
        self.op, self.multicast = op, multicast

    def check(self, name, tensor, shape):
        self.op, self.multicast = constant(self.op, f"{name}: op"), constant(self.multicast, f"{name}: multicast")
        _check(name, tensor, shape, self.op, self.multicast)

    def vectors(self, p, part, tensor_at, places):
        _, combine, neutral, verb = OPS[self.op]
        if self.multicast:
            precise = ".acc::f32" if verb == "add" and part.itemsize == 2 else ""
            text = f"multimem.ld_reduce.relaxed.sys.global.{verb}{precise}.v4.{_multimem_type(part)}"
            return part.load(p, text, *p.tensor(tensor_at, "multicast"), places)
        total = p.variable(p.array(p.f32, part.width * part.unroll), [neutral] * (part.width * part.unroll))

        def load(rank):
            return part.load(p, _LOAD, base_of(p, tensor_at, rank), places)

        def add(words):
            values = zip(p.elements(p.b.load(total)), part.floats(p, words))
            p.b.store(p.pack([combine(p, a, x) for a, x in values]), total)

        ranks, = p.tensor(tensor_at, "world")
        for pair in p.loop(p.b.udiv(ranks, p.const(2))):        # two ranks' values are on their way at once
            first = p.b.shl(pair, p.const(1))
            words = load(first), load(p.b.add(first, p.const(1)))
            add(words[0]), add(words[1])
        with p.when(p.b.icmp_unsigned("==", p.b.and_(ranks, p.const(1)), p.const(1))):
            add(load(p.b.sub(ranks, p.const(1))))
        return part.words(p, p.elements(p.b.load(total)))

    def one(self, p, part, tensor_at, offset):
        _, combine, neutral, _ = OPS[self.op]
        total = p.variable(p.f32, neutral)
        for r in p.loop(*p.tensor(tensor_at, "world")):
            p.b.store(combine(p, p.b.load(total), part.load_one(p, p.b.add(base_of(p, tensor_at, r), offset))), total)
        return p.b.load(total)


class _Own:
    """Where the values go: this rank's window."""

    def check(self, name, tensor, shape):
        """Nothing more can be wrong."""

    def vectors(self, p, part, tensor_at, places, words):
        part.store(p, _STORE, *p.tensor(tensor_at, "pointer"), places, words)

    def one(self, p, part, tensor_at, offset, value):
        part.store_one(p, p.b.add(*p.tensor(tensor_at, "pointer"), offset), value)


class _Spread:
    """Where the values go: every rank's window, or that of all others."""

    def __init__(self, multicast, others=False):
        self.multicast, self.first = multicast, int(others)

    def check(self, name, tensor, shape):
        self.multicast = constant(self.multicast, f"{name}: multicast")

    def _bases(self, p, tensor_at):
        world, rank = p.tensor(tensor_at, "world", "rank")
        for r in p.loop(p.b.sub(world, p.const(self.first))):       # every rank starts at another: the links share the load
            yield base_of(p, tensor_at, p.b.urem(p.b.add(p.b.add(r, rank), p.const(self.first)), world))

    def vectors(self, p, part, tensor_at, places, words):
        if self.multicast:
            text = f"multimem.st.relaxed.sys.global.v4.{_multimem_type(part)}"
            return part.store(p, text, *p.tensor(tensor_at, "multicast"), places, words)
        for base in self._bases(p, tensor_at):
            part.store(p, _STORE, base, places, words)

    def one(self, p, part, tensor_at, offset, value):
        for base in self._bases(p, tensor_at):
            part.store_one(p, p.b.add(base, offset), value)


def _multimem_type(part):
    return KIND[part.dtype] + "x2" if part.itemsize == 2 else "f32"


def _window(name, tensor, shape, source, target):
    """The lowering: values from ``source`` to ``target``, vector by vector.

    Returns: run(p, tensor, its coord, tensor of the target, its coord).
    """
    extent = constant(shape, f"{name}: shape")
    source.check(name, tensor, extent)
    target.check(name, tensor, extent)
    part = Vectors(tensor, extent)

    def run(p, tensor_at, coord, out_at=None, out_coord=None):
        to = tensor_at if out_at is None else out_at

        def move(here, there):
            target.one(p, part, to, there, source.one(p, part, tensor_at, here))

        for step in p.loop(p.const(part.steps)):
            places = targets = part.places(p, tensor_at, coord, step)
            if out_at is not None:
                places, targets = part.common(p, places, part.places(p, out_at, out_coord, step))
            target.vectors(p, part, to, targets, source.vectors(p, part, tensor_at, places))
            part.edge(p, places, targets, move)
    return run
