"""moe_layer on worlds that span nodes: a token crosses once to each node that has one of its experts, and its sum there comes back once.

A rank sends the tokens that a node needs to the rank with its number there, which plays the layer for them with the node's experts alone:
the others of a token count as nothing. What nodes give is added in float32, in their order. The host learns how many tokens go where.
"""

from .. import kernels
from ..errors import ShapeError, UnsupportedError
from ..runtime import arrays
from ..runtime.nodes import merging
from ..templates.forms import share
from .memory import Memory
from .schedule import pipelined

__all__ = ["check_tokens", "moe_layer"]


def check_tokens(name, world, X, indices, weights, W1, W2, capacity):
    """The ArrayInfos. Raises ShapeError or UnsupportedError for what nodes cannot share; the operators of one node check the rest."""
    found = [arrays.describe(x, label) for label, x in (("X", X), ("indices", indices), ("weights", weights), ("W1", W1), ("W2", W2))]
    if [len(x.shape) for x in found] != [2, 2, 2, 3, 3] or not found[0].shape[0] == found[1].shape[0] == found[2].shape[0]:
        shapes = ", ".join(str(tuple(x.shape)) for x in found)
        raise ShapeError(f"{name}: X, indices, weights, W1 and W2 have shapes {shapes}. They are (T, H), (T, k), (T, k) and "
                         "matrices of this rank's experts. Reshape them.")
    if not world.layout.even:
        sizes = ", ".join(f"{n} on node {node}" for n, node in zip(world.layout.sizes, world.layout.names))
        raise ShapeError(f"{name}: ranks are {sizes}. Every node has as many, so that each rank has a partner on every node. Start equal "
                         "numbers of ranks.", nodes=list(world.layout.names))
    if capacity is not None or not merging.can_merge(X):
        raise UnsupportedError(f"{name}: capacity {capacity}, X a {type(X).__name__}. Over nodes nothing is dropped, and X's library "
                               "chooses tokens. Pass capacity=None and a NumPy, CuPy or torch array.")
    return found


def moe_layer(phases, found, X, indices, weights, W1, W2, out, activation, experts, config):
    """The layer; ``out`` an array (T, N) of X's library."""
    layout, (tokens, _) = phases.layout, found[0].shape
    memories = [phases.memory, *(Memory(phases.world, dtype, phases.memory.stream) for dtype in ("int32", "float32"))]
    starts = [share(experts, phases.world.size, group[0])[0] for group in layout.groups] + [experts]
    chosen = [merging.tokens_of(indices, starts[node], starts[node + 1]) for node in range(phases.nodes)]
    given = dict(activation=activation, experts=starts[phases.here + 1] - starts[phases.here], config=config, stream=phases.memory.given)
    coming, results = _counts(phases, memories[1], indices, chosen), {}

    def played(x, places, shares):
        if not given["experts"]:                 # fewer experts than ranks: nobody sends a token here
            return merging.zeros(X, (tokens, out.shape[1]), found[0].dtype)
        return kernels.moe_layer(phases.node, x, places, shares, W1, W2, **given)

    def own():
        _, places = chosen[phases.here]
        results[phases.here] = played(X, places, weights)
        yield

    def other(distance, target, source):
        rows, places = chosen[target]
        there, back = phases.rank(target, phases.local), phases.rank(source, phases.local)
        sent = [merging.rows_of(x, rows) for x in (X, places, weights)]
        n = coming[source]
        came = [arrays.empty_like_library(x, (n, *x.shape[1:]), info.dtype) for x, info in zip((X, indices, weights), found)]
        wait = phases.exchange(f"tokens at distance {distance}", [(there, m.of(x)) for m, x in zip(memories, sent)],
                               [(back, m.of(x)) for m, x in zip(memories, came)])
        yield
        wait()
        padded = [merging.padded(x, tokens, fill) for x, fill in zip(came, (0, -1, 0))]
        sums = played(*padded)[:n]
        results[target] = arrays.empty_like_library(X, (len(rows), out.shape[1]), found[0].dtype)
        wait = phases.exchange(f"sums at distance {distance}", [(back, phases.memory.of(sums))],
                               [(there, phases.memory.of(results[target]))])
        yield
        wait()

    first, *later = phases.others()
    pipelined([other(*first), own(), *(other(*o) for o in later)])
    merging.gather_sums(out, [(None if node == phases.here else chosen[node][0], results[node]) for node in range(phases.nodes)])


def _counts(phases, memory, indices, chosen):
    """How many tokens come from the partner on each node."""
    numbers = arrays.empty_like_library(indices, (2, phases.nodes), "int32")
    for node, (rows, _) in enumerate(chosen):
        numbers[0, node] = len(rows)
    flat = memory.of(numbers)

    def at(row, node):
        place = row * phases.nodes + node
        return phases.rank(node, phases.local), memory.part(flat, place, place + 1)
    nodes = [node for node in range(phases.nodes) if node != phases.here]
    phases.exchange("numbers of tokens", [at(0, node) for node in nodes], [at(1, node) for node in nodes])()
    phases.node.synchronize(phases.memory.given)
    return [0 if node == phases.here else int(numbers[1, node]) for node in range(phases.nodes)]
