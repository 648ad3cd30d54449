"""ring_attention on worlds that span nodes: the ring goes round nodes through the engine, and inside each node K and V are gathered.

Every shard of K and V crosses to each node once, and with causal attention only where somebody sees it. A node attends to its own keys
by the ring of one node while the first of another arrive; what each node's keys give is merged by its log-sum-exp, in float32.
"""

from math import prod

from .. import kernels
from ..errors import ShapeError, UnsupportedError
from ..runtime.nodes import merging
from .schedule import pipelined

__all__ = ["check_shares", "ring_attention"]


def check_shares(name, world, found, zigzag, rows):
    """Raise ShapeError unless nodes have equal numbers of ranks, and ranks equal pieces of the sequence."""
    sizes = ", ".join(f"{n} on node {node}" for n, node in zip(world.layout.sizes, world.layout.names))
    if not world.layout.even:
        raise ShapeError(f"{name}: ranks are {sizes}. Every node has as many, so that each rank has a partner on every node. Start equal "
                         "numbers of ranks.", nodes=list(world.layout.names))
    mine, pieces = found.k.shape[2], 2 if zigzag else 1
    if found.q.shape[2] != mine or mine % pieces or rows not in (None, mine * world.size):
        raise ShapeError(f"{name}: {found.q.shape[2]} rows of q, {mine} of k, {rows} in all, for {world.size} ranks on several nodes. "
                         f"Every rank has as many, and a multiple of {pieces}. Pad the sequence.", rows=rows)
    if not merging.can_merge(found.q.owner):
        raise UnsupportedError(f"{name}: q is a {type(found.q.owner).__name__}. What nodes give is merged by q's library. Pass a NumPy, "
                               "CuPy or torch array.")


def ring_attention(phases, found, q, k, v, out, lse, causal, zigzag, scale, config):
    """O and log-sum-exp in ``out`` and ``lse`` (arrays of q's library; lse may be False)."""
    memory, s = phases.memory, found.k.shape[2]
    half, given = s // 2, dict(stream=memory.given)
    total = []          # [O in float32, log-sum-exp] of the keys so far

    def seen(source, target):
        """Rows of a shard of node ``source`` that anybody on node ``target`` sees: all, the earlier half, or none."""
        if not causal or source < target and not zigzag:
            return s
        return (half if source < target else s) if zigzag else 0

    def own():
        found_here = kernels.ring_attention(phases.node, q, k, v, causal=causal, zigzag=zigzag, rows=s * phases.ranks, scale=scale,
                                            config=config, **given)
        total.extend(merging.begin(*found_here))
        yield

    def other(distance, target, source):
        sent, came = seen(phases.here, target), seen(source, phases.here)
        packed = [merging.packed(x, sent) for x in (k, v)] if sent else []
        shape = [(*x.shape[:2], came, x.shape[3]) for x in (found.k, found.v)]
        parts = [memory.room(f"{name} of a shard", prod(n), distance) for name, n in zip("kv", shape)] if came else []
        wait = phases.exchange(f"distance {distance}", [(phases.rank(target, phases.local), memory.of(x)) for x in packed],
                               [(phases.rank(source, phases.local), part) for part in parts])
        yield
        wait()
        if not came:
            return
        keys, values = (_together(phases, part, n, name, distance) for part, n, name in zip(parts, shape, "kv"))
        late = half if causal and zigzag and source > phases.here else 0        # only the later half of the queries comes after those keys
        more = kernels.attention(phases.node, q[:, :, late:], keys, values, scale=scale, **given)
        merging.add(total, more, late)

    first, *later = phases.others()
    pipelined([own(), other(*first), *(other(*o) for o in later)])
    merging.finish(total, out, lse)


def _together(phases, part, shape, name, distance):
    """K or V of all ranks of a node: (batch, heads, rows, width)."""
    memory = phases.memory
    if phases.ranks == 1:
        return memory.shaped(part, shape)
    whole = (*shape[:2], shape[2] * phases.ranks, shape[3])
    target = memory.shaped(memory.room(f"{name} of a node", prod(whole), distance), whole)
    return kernels.all_gather(phases.node, memory.shaped(part, shape), axis=2, out=target, stream=memory.given)
