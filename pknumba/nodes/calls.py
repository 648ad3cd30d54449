"""What the public operators do on a world that spans nodes: the same checks and agreement as on one node, then phases."""

from ..errors import UnsupportedError
from ..runtime import arrays
from ..runtime.nodes import merging
from ..templates import arguments as products_check
from ..templates import attending, collected
from ..templates.agreement import agreed
from ..templates.fast import empty_product, is_symmetric, stream_source
from . import attention, moves, products, reductions
from . import experts as layers
from .experts import check_tokens as token_check
from .phases import Phases

__all__ = ["attend_ring", "communicate", "moe_layer", "multiply", "unsupported"]

_COLLECTIVES = {f.__name__: f for f in (reductions.all_reduce, reductions.reduce, reductions.reduce_scatter,
                                        moves.all_gather, moves.broadcast, moves.all_to_all)}
_PRODUCTS = {"GemmAllReduce": products.gemm_all_reduce, "GemmReduceScatter": products.gemm_reduce_scatter,
             "AllGatherGemm": products.all_gather_gemm}


def unsupported(name, world):
    """The UnsupportedError of an operator that works inside a node only."""
    names = world.layout.names
    return UnsupportedError(f"{name}: this world spans {len(names)} nodes ({', '.join(names[:8])}{', ...' if names[8:] else ''}). The "
                            "operator works inside a node. Pass world.node, or compose it from operators that span nodes.",
                            nodes=list(names))


def communicate(kernel, world, x, out, config, stream, call_arguments):
    """The collective ``kernel`` on every rank of all nodes; arguments, result and errors as on one node."""
    name = kernel.operator
    world.check()
    operator = _COLLECTIVES.get(name)
    if operator is None or "scatter_splits" in call_arguments:
        raise unsupported(f"{name} with splits" if operator else name, world)
    found = agreed(world, name, kernel, lambda: collected.check(kernel, world, x, out, config, stream, call_arguments),
                   lambda found: {**found.terms, "config": repr(config), **{k: repr(v) for k, v in call_arguments.items()}})
    pointer = stream_source(world, stream, out if x is None else x)()
    receives = kernel.receives(world.rank, **call_arguments)
    result = out if receives else None
    if out is None and receives:
        result = arrays.empty_like_library(_local(x), found.form.out, found.x.dtype)
    if 0 not in found.form.dims:
        with world.inside(name):
            phases = Phases(world, name, found.x.dtype, pointer, config)
            memory = phases.memory
            operator(phases, found, memory.of(_local(x)), None if result is None else memory.of(_local(result)), **call_arguments)
    return _local(result)


def multiply(kernel, world, A, B, out, config, stream, rows):
    """The product ``kernel`` on every rank of all nodes; arguments, result and errors as on one node."""
    name = kernel.title or kernel.__name__
    world.check()
    operator = _PRODUCTS.get(name)
    if operator is None:
        raise unsupported(name, world)
    if out is None:
        out = empty_product(kernel.form, world, A, B, rows)
    found = agreed(world, name, kernel, lambda: products_check.check(name, kernel, world, A, B, out, config, stream, rows), lambda found: {
        "A.shape": [found.m, found.a.shape[1]], "B.shape": list(found.b.shape), "dtype": found.a.dtype, "config": repr(config),
        "layout of B": "columns" if found.transposed else "rows"})
    if found.m and found.b.shape[1]:
        with world.inside(name):
            phases = Phases(world, name, found.a.dtype, stream_source(world, stream, A)())
            memory = phases.memory
            apart = not _gapless(found.c)
            C = memory.room("result", found.c.shape[0] * found.c.shape[1]) if apart else memory.of(_local(out))
            operator(phases, found, _gathered(memory, found.a, kernel), _local(B), C, config)
            if apart:
                _copy_rows(memory, found.c, C)
    return _local(out)


def attend_ring(kernel, world, q, k, v, out, lse, config, stream, causal, zigzag, rows, scale):
    """ring_attention on every rank of all nodes; arguments, result and errors as on one node, and nodes and ranks have equal shares."""
    name = kernel.title
    world.check()
    out, lse = attending.results(q, out, lse) if out is None or lse is None else (out, lse)
    q, k, v, out = (_local(x) for x in (q, k, v, out))

    def checked():
        found = attending.check(name, kernel, world, attending.Heads(q, k, v, out, lse), config, causal, scale, 0)
        attention.check_shares(name, world, found, zigzag, rows)
        return found
    found = agreed(world, name, kernel, checked, lambda found: {
        "q.shape": found.q.shape, "k.shape": found.k.shape, "v.shape": found.v.shape, "dtype": found.q.dtype, "config": repr(config),
        "causal": causal, "zigzag": zigzag, "rows": rows, "scale": scale})
    if 0 not in (*found.q.shape, *found.k.shape):
        pointer = stream_source(world, stream, q)()
        with world.inside(name), merging.on(q, pointer):
            phases = Phases(world, name, found.q.dtype, pointer)
            attention.ring_attention(phases, found, q, k, v, out, lse, causal, zigzag, scale, config)
    return out, lse


def moe_layer(world, X, indices, weights, W1, W2, activation, experts, capacity, out, config, stream):
    """moe_layer on every rank of all nodes; arguments, result and errors as on one node, without a capacity, nodes of one size."""
    name = "moe_layer"
    world.check()
    X, W1, W2, out = (_local(x) for x in (X, W1, W2, out))
    found = agreed(world, name, moe_layer, lambda: token_check(name, world, X, indices, weights, W1, W2, capacity), lambda found: {
        "X.shape": found[0].shape, "indices.shape": found[1].shape, "W.shape": (found[3].shape[1:], found[4].shape[1:]),
        "dtype": found[0].dtype, "experts": experts, "activation": activation, "config": repr(config)})
    pointer = stream_source(world, stream, X)()
    out = arrays.empty_like_library(X, (found[0].shape[0], found[4].shape[2]), found[0].dtype) if out is None else out
    with world.inside(name), merging.on(X, pointer):
        phases = Phases(world, name, found[0].dtype, pointer)
        total = world.size * found[3].shape[0] if experts is None else experts
        layers.moe_layer(phases, found, X, indices, weights, W1, W2, out, activation, total, config)
    return out


def _local(x):
    return x.local if is_symmetric(x) else x


def _gapless(info):
    return info.shape[0] <= 1 or info.shape[1] == 0 or info.strides[0] == info.strides[1] * info.shape[1]


def _gathered(memory, a, kernel):
    """All elements of A, row after row, where its rows are sent; None where they are not."""
    if kernel.form.operand == "A":
        return None
    rows, cols = a.shape
    flat = memory.room("rows of A", rows * cols)
    whole = memory.matrix(a, 0, rows)
    pitch = a.strides[0] // memory.size if rows > 1 else cols
    if memory.gpu:
        memory.copy_rows(flat, cols, whole, pitch, rows, cols)
    else:
        flat.reshape(rows, cols)[...] = whole
    return flat


def _copy_rows(memory, c, flat):
    """The result to an array whose rows lie apart."""
    rows, cols = c.shape
    target = memory.matrix(c, 0, rows)
    if memory.gpu:
        memory.copy_rows(target, c.strides[0] // memory.size, flat, cols, rows, cols)
    else:
        target[...] = flat.reshape(rows, cols)
