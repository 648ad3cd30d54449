"""Calls that send tokens to experts: what their arguments must be, what ranks agree on, and the launches of a call in a row."""

from collections import namedtuple
from functools import partial

from ..errors import LayoutError, ShapeError, WorldError
from . import arguments, transfers
from .agreement import agreed, least_sms
from .call import prepare
from .expert_calls import ExpertCall, Routes, Tables
from .fast import found, is_symmetric, stream_source
from .forms import share
from .group_calls import _columns, ragged

#: A dispatch's arguments as ``runtime.describe`` sees them.
Given = namedtuple("Given", "x indices b out columns tokens experts capacity symmetric")


def dispatch(route, kernel, world, X, indices, B, activation, tokens, experts, capacity, out, config, stream):
    """Arguments, result and errors are those of ``moe_dispatch_gemm``. route: (kernel that routes, its configuration)."""
    make = partial(DispatchCall, route, kernel, world, X, indices, B, activation, tokens, experts, capacity, out, config, stream)
    what = kernel, activation, tokens, experts, capacity, config, stream
    call = make() if out is None else found(world, what, (X, indices, B, out), make)
    call.run(call.stream())
    return call.out, Routes(call.tables, *call.shape)


class DispatchCall(ExpertCall):
    """A dispatch of these arrays: checked, agreed with the other ranks, and packed."""

    def __init__(self, route, kernel, world, X, indices, B, activation, tokens, experts, capacity, out, config, stream):
        self._start(kernel, world)
        given = agreed(world, self.name, kernel, lambda: check(self.name, kernel, world, X, indices, B, tokens, experts, capacity,
                                                                       out, config),
                       lambda g: {"X.shape": [g.tokens, g.x.shape[1]], "top k": g.indices.shape[1], "N": g.b.shape[2], "dtype": g.x.dtype,
                                  "experts": g.experts, "capacity": g.capacity, "config": repr((config, activation)),
                                  "X": f"symmetric array {g.symmetric}" if g.symmetric else "no symmetric array"})
        self.stream = stream_source(world, stream, X)
        self.out = _result(X, given) if out is None else out
        (t, h), top_k, n = given.x.shape, given.indices.shape[1], given.b.shape[2]
        at = stream if stream is None else self.stream()
        if 0 in (given.tokens, top_k, h, n):
            raise ShapeError(f"{self.name}: X {tuple(given.x.shape)}, indices {tuple(given.indices.shape)}, N = {n}. None may be 0, "
                             "save a rank's tokens where others have some. Leave the call out.")
        key, slots = ("tables", given.tokens * top_k, given.experts, given.capacity, at), given.tokens * top_k
        if key not in world.cache:
            world.cache[key] = Tables(world, slots, given.experts, given.capacity)
        self.tables, self.shape = world.cache[key], (t, top_k)
        tables = self.tables
        changes = {} if activation is None else {"activation": activation}
        cfg = self._configured(config, slots, -(-given.experts // world.size), n, h, given.x.dtype, given.columns, **changes)
        self._route(*route, tables, given.indices, at)
        numbers = self._numbers(cfg, tables, n, h, top_k=top_k)
        workspace, first = self._workspace(cfg, tables, n, h, top_k, numbers, at)
        from ..runtime import arrays
        c, rows = arrays.describe(self.out, "out"), self._buffer(workspace, given.capacity, h, given.x.dtype)
        x = self._operand(given.x) if self.alone else self._tokens(X, given, at)
        if self.alone and t:
            self._of_tokens(kernel.before, workspace, given.x.dtype, self.shape, {"A": rows, "X": x, "place": tables.row(tables.place)})
        matrices = {"A": ragged(rows), "B": self._experts(given.b, given.columns), "C": ragged(self._kept(self.out, c)),
                    "ends": tables.row(tables.ends), "source": tables.row(tables.source), "X": x}
        self.launches.append(prepare(self.kernel, world, cfg, matrices, numbers, workspace).fire)
        self._ready(first)

    def _tokens(self, X, given, at):
        """X in memory that peers see."""
        if is_symmetric(X):
            return self._shared(X)
        x, (rows, cols) = given.x, given.x.shape
        key = "tokens", (given.tokens, cols), x.dtype, at
        if key not in self.world.cache:
            self.world.cache[key] = self.world.symmetric((given.tokens, cols), x.dtype)
        array = self.world.cache[key]
        if self.world.executor == "interpreter":
            self.before.append(lambda s: array.local.__setitem__(slice(rows), x.owner))
        elif rows:
            from ..runtime import driver
            pitch = x.strides[0] if rows > 1 else cols * 2
            self.before.append(driver.copier_2d(array.pointer, array.pitch, x.pointer, pitch, cols * 2, rows))
        return self._shared(array)

    def _route(self, kernel, cfg, tables, indices, at):
        """The launch that fills the tables."""
        world = self.world
        cfg = cfg.replace(blocks=max(1, min(-(-(tables.experts + 1) * tables.stretches // cfg.warps), least_sms(world))))
        key = "workspace", kernel, cfg, tables.slots, tables.experts, tables.capacity, at
        meeting, _ = transfers.workspace(world, key, self.name, kernel, cfg, dict.fromkeys(kernel.counters, world.size * cfg.blocks))
        flat = indices.owner.reshape(-1) if world.executor == "interpreter" else indices
        views = dict(indices=tables.private(flat), starts=tables.shared(tables.starts), place=tables.private(tables.place),
                     source=tables.shared(tables.source), ends=tables.private(tables.ends))
        numbers = dict(slots=tables.slots, own=indices.shape[0] * indices.shape[1], experts=tables.experts, capacity=tables.capacity,
                       stretches=tables.stretches, long=-(-tables.slots // tables.stretches))
        launch = transfers.prepare(kernel, world, cfg, views, numbers, meeting)
        self.launches.append(lambda s: launch.fire(s, None))


def _result(X, given):
    from ..runtime import arrays
    return arrays.empty_like_library(X.local if is_symmetric(X) else X, (given.capacity, given.b.shape[2]), given.x.dtype)


def check(name, kernel, world, X, indices, B, tokens, experts, capacity, out, config):
    """Given. Raises the error of the first rule that is broken."""
    from ..runtime import arrays
    arguments.check_config(name, kernel, config)
    if is_symmetric(X) and X.world is not world:
        raise WorldError(f"{name}: X belongs to another world. It must be memory of the world that is passed. Make it by world.symmetric.")
    named = ("X", X.local if is_symmetric(X) else X), ("indices", indices), ("B", B)
    x, i, b = (arguments.home(name, world, label, arrays.describe(y, label)) for label, y in named)
    for label, y, dims in (("X", x, 2), ("indices", i, 2), ("B", b, 3)):
        if len(y.shape) != dims:
            raise ShapeError(f"{name}: {label} has shape {tuple(y.shape)}. It must have {dims} dimensions. Reshape it.",
                             shape=tuple(y.shape))
    arguments.check_kinds(name, x.dtype, b.dtype, i.dtype, "X", "indices")
    if i.shape[0] != x.shape[0] or b.shape[1] != x.shape[1]:
        raise ShapeError(f"{name}: X {tuple(x.shape)}, indices {tuple(i.shape)} and B {tuple(b.shape)} do not fit. There are indices for "
                         "every token, and X's columns equal B's rows. Transpose B's last two dimensions, or count again.")
    arguments.check_rows(name, "X", x.shape, x.strides, x.dtype)
    if i.strides[1] != 4 and i.shape[1] > 1 or i.strides[0] != 4 * i.shape[1] and i.shape[0] > 1:
        raise LayoutError(f"{name}: indices have strides {tuple(i.strides)}. They must be contiguous. Pass a copy.")
    for label, value in (("tokens", tokens), ("experts", experts), ("capacity", capacity)):
        if value is not None and (type(value) is not int or value < 1):
            raise ShapeError(f"{name}: {label} = {value!r}. It is a positive int, or None. Count again.")
    tokens = x.shape[0] if tokens is None else tokens
    if x.shape[0] > tokens or is_symmetric(X) and x.shape[0] != tokens:
        raise ShapeError(f"{name}: X has {x.shape[0]} tokens, tokens = {tokens}. It is the most that a rank has; a symmetric X has as "
                         "many. Count again.")
    experts = world.size * b.shape[0] if experts is None else experts
    mine = share(experts, world.size, world.rank)[1]
    if b.shape[0] != mine:
        raise ShapeError(f"{name}: B has {b.shape[0]} matrices. Rank {world.rank}'s share of {experts} experts is {mine}. Pass "
                         "numpy.array_split(B, world.size)[world.rank].", shape=tuple(b.shape))
    capacity = capacity or world.size * tokens * i.shape[1]
    if world.size * max(capacity, tokens * i.shape[1]) >= 2**31:
        raise ShapeError(f"{name}: {capacity} rows for each of {world.size} ranks. Tables hold 32-bit numbers. Split the call.")
    columns = _columns(name, b)
    if out is not None:
        arguments.check_out(name, world, out, x.dtype, (capacity, b.shape[2]))
    return Given(x, i, b, out, columns, tokens, experts, capacity, X.number if is_symmetric(X) else 0)


def kept_result(world, X, indices, W, tokens, capacity, stream):
    """Memory for a first product of that shape, which the world keeps; None where shapes do not fit (the check says so)."""
    from ..runtime import arrays
    try:
        x = X.local if is_symmetric(X) else X
        shape = capacity or world.size * (tokens or indices.shape[0]) * indices.shape[1], W.shape[2]
        key = "first product", shape, arrays.describe(x, "X").dtype, stream, arrays.library_of(x)
        if key not in world.cache:
            world.cache[key] = arrays.empty_like_library(x, shape, key[2])
        return world.cache[key]
    except (AttributeError, IndexError, TypeError):
        return None


__all__ = ["dispatch", "kept_result"]
