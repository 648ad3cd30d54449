"""all_reduce, reduce and reduce_scatter on worlds that span nodes.

A node's ranks each combine a part of what the node has, by the kernels of one node; then each meets those who have the same part on
other nodes, and combines what the nodes have in the order of nodes; so every sum is made once, in float32, and rounded once a phase.
"""

from .. import kernels
from .cuts import equal, owned
from .schedule import pipelined
from .trees import by_tree, handed_down, summed_up

__all__ = ["all_reduce", "reduce", "reduce_scatter"]


def all_reduce(phases, found, x, out, op):
    """Scatter the node's sum over its ranks, sum over nodes, gather."""
    memory = phases.memory
    pipelined(_all_reduce(phases, memory.part(x, a, b), memory.part(out, a, b), op, i) for i, (a, b) in enumerate(phases.chunks(x.size)))


def _all_reduce(phases, x, out, op, chunk):
    _, mine = phases.mine(x.size)
    part = phases.scattered("all_reduce", x, op, chunk)
    yield from reduced_everywhere(phases, phases.memory.part(part, 0, mine[1] - mine[0]), mine, phases.cuts(x.size), op, chunk)
    phases.gathered(part, out, chunk)


def reduced_everywhere(phases, part, mine, cuts, op, chunk):
    """Combine parts over nodes, in place. A generator that yields where it waits for other nodes.

    Nodes own equal amounts of every part: what is not owned is sent to its owner, and comes back combined. Small parts of many nodes go
    up and down a tree instead.

    Args:
        mine: interval of the whole that ``part`` holds. cuts: for every node, those of its ranks.
    """
    memory, first = phases.memory, mine[0]
    if by_tree(phases.nodes, cuts[0][-1][1] * memory.size // max(phases.layout.sizes)):
        yield from summed_up(phases, part, mine, cuts, op, 0, chunk)
        wait = yield from handed_down(phases, part, mine, cuts, 0, chunk)
        if wait:
            yield
            wait()
        return
    pieces = owned(mine, cuts, 16 // memory.size)
    own = [(a, b, holders) for a, b, node, holders in pieces if node == phases.here]
    away = [(phases.rank(node, holders[node]), memory.part(part, a - first, b - first))
            for a, b, node, holders in pieces if node != phases.here]
    came = memory.room("owned terms", phases.nodes * sum(b - a + 16 for a, b, _ in own), chunk)
    terms, receives, at = [], [], 0
    for a, b, holders in own:
        here = memory.part(part, a - first, b - first)
        terms.append([])
        for node in range(phases.nodes):
            room = here if node == phases.here else memory.part(came, at, at + b - a)
            if node != phases.here:
                receives.append((phases.rank(node, holders[node]), room))
                at += -(-(b - a) // 16) * 16
            terms[-1].append(room)
    wait = phases.exchange(f"chunk {chunk}, terms", away, receives)
    yield
    wait()
    back = []
    for (_, _, holders), rooms in zip(own, terms):
        memory.combine(rooms[phases.here], rooms, op)
        back += [(phases.rank(node, holders[node]), rooms[phases.here]) for node in range(phases.nodes) if node != phases.here]
    wait = phases.exchange(f"chunk {chunk}, sums", back, away)
    yield
    wait()


def reduce(phases, found, x, out, op, root):
    """Up a binary tree of nodes: each combines what its children have with its own, and sends that on."""
    memory = phases.memory
    home, local = phases.layout.home[root]
    pipelined(_reduce(phases, memory.part(x, a, b), None if out is None else memory.part(out, a, b), op, home, local, i)
              for i, (a, b) in enumerate(phases.chunks(x.size)))


def _reduce(phases, x, out, op, home, local, chunk):
    memory, n, cuts = phases.memory, x.size, phases.cuts(x.size)
    length, mine = phases.mine(n)
    part = phases.scattered("reduce", x, op, chunk)
    sums = memory.part(part, 0, mine[1] - mine[0])
    yield from summed_up(phases, sums, mine, cuts, op, home, chunk)
    if phases.here != home:
        return
    if phases.ranks == 1:
        memory.copy(out, sums)
    else:
        into = out if length * phases.ranks == n else memory.room("reduced", length * phases.ranks, chunk)
        kernels.gather(phases.node, part, root=local, out=into, **phases.options)
        if out is not None:
            memory.copy(out, memory.part(into, 0, n))


def reduce_scatter(phases, found, x, out, op, axis):
    """For one node after the other, the next one's first: combine what its ranks are to have, and send each rank its share."""
    memory, layout = phases.memory, phases.layout
    before, share = _lines(found.x.shape, axis, phases.world.size)
    rooms = phases.rooms(out.size)

    def slab(node, chunk):
        """What the ranks of a node are to have, share after share."""
        ranks = layout.groups[node]
        if before == 1:
            return memory.part(x, ranks[0] * share, (ranks[-1] + 1) * share)
        room = memory.room("slab", len(ranks) * out.size, chunk)
        for i, rank in enumerate(ranks):
            memory.copy_rows(memory.part(room, i * out.size, room.size), share, memory.part(x, rank * share, x.size),
                             phases.world.size * share, before, share)
        return room

    def to(distance, target, source):
        n = layout.sizes[target] * out.size
        chunk = distance or phases.nodes         # this node comes last
        part = phases.scattered("reduce_scatter", slab(target, chunk), op, chunk)
        _, mine = phases.mine(n)
        shares = equal(n, layout.sizes[target])
        sends = phases.meets(part, mine, shares, target)
        if target == phases.here:
            memory.copy(rooms[target], memory.part(part, 0, out.size))
            return
        own = (phases.local * out.size, (phases.local + 1) * out.size)
        receives = phases.meets(rooms[source], own, equal(phases.ranks * out.size, layout.sizes[source]), source)
        wait = phases.exchange(f"distance {distance}", sends, receives)
        yield
        wait()

    pipelined([to(*other) for other in phases.others()] + [to(0, phases.here, phases.here)])
    memory.combine(out, rooms, op)


def _lines(shape, axis, ranks):
    """(elements before an axis, elements of a rank's share of one line along it)."""
    axis, before, line = axis % len(shape), 1, 1
    for i, n in enumerate(shape):
        before, line = (before * n, line) if i < axis else (before, line * n)
    return before, line // ranks
