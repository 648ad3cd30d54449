"""all_gather, broadcast and all_to_all on worlds that span nodes: every element crosses to each node that needs it once."""

from math import prod

from .. import kernels
from ..errors import ShapeError
from .cuts import equal
from .schedule import pipelined
from .trees import handed_down

__all__ = ["all_gather", "broadcast", "all_to_all"]


def all_gather(phases, found, x, out, axis):
    """A node's shards come in as many equal parts as this node has ranks, and are gathered here."""
    memory, layout = phases.memory, phases.layout
    axis %= len(found.x.shape)
    before, share, ranks = prod(found.x.shape[:axis]), prod(found.x.shape[axis:]), phases.world.size

    def place(node, chunk):
        """Where the shards of a node are gathered: in the result if they lie together there."""
        group = layout.groups[node]
        if before == 1:
            return memory.part(out, group[0] * x.size, (group[-1] + 1) * x.size)
        return memory.room("slab", len(group) * x.size, chunk)

    def finish(node, slab):
        if before > 1:
            for i, rank in enumerate(layout.groups[node]):
                memory.copy_rows(memory.part(out, rank * share, out.size), ranks * share, memory.part(slab, i * x.size, slab.size), share,
                                 before, share)

    def own():
        slab = place(phases.here, 0)
        phases.gathered(x, slab, 0)
        finish(phases.here, slab)
        yield

    def other(distance, target, source):
        slab, shard = place(source, distance), (phases.local * x.size, (phases.local + 1) * x.size)
        length, mine = phases.mine(slab.size)
        part = memory.room("shards", length, distance)
        sends = phases.meets(x, shard, equal(phases.ranks * x.size, layout.sizes[target]), target)
        receives = phases.meets(part, mine, equal(slab.size, layout.sizes[source]), source)
        wait = phases.exchange(f"distance {distance}", sends, receives)
        yield
        wait()
        phases.gathered(part, slab, distance)
        finish(source, slab)

    first, *later = phases.others()
    pipelined([other(*first), own(), *(other(*o) for o in later)])


def broadcast(phases, found, x, out, root):
    """The root's node is scattered to its ranks; parts go down a binary tree of nodes, and are gathered in each."""
    memory = phases.memory
    home, local = phases.layout.home[root]
    pipelined(_broadcast(phases, memory.part(x, a, b), memory.part(out, a, b), home, local, i)
              for i, (a, b) in enumerate(phases.chunks(x.size)))


def _broadcast(phases, x, out, home, local, chunk):
    memory, cuts = phases.memory, phases.cuts(x.size)
    length, mine = phases.mine(x.size)
    part = memory.room("broadcast part", length, chunk)
    held = memory.part(part, 0, mine[1] - mine[0])
    if phases.here == home and phases.ranks == 1:
        memory.copy(part, x)
    elif phases.here == home:
        kernels.scatter(phases.node, phases.padded(x, length * phases.ranks, chunk), root=local, out=part, **phases.options)
    wait = yield from handed_down(phases, held, mine, cuts, home, chunk)
    phases.gathered(part, out, chunk)
    if wait:
        yield
        wait()


def all_to_all(phases, found, x, out, scatter_axis, gather_axis):
    """For one node after the other: this node's ranks exchange what each of that node's ranks is to have from all of them, and the one
    with its number sends it. Nodes have equal numbers of ranks."""
    memory, shape, nodes = phases.memory, found.x.shape, phases.nodes
    if not phases.layout.even:
        sizes = ", ".join(f"{n} on node {name}" for n, name in zip(phases.layout.sizes, phases.layout.names))
        raise ShapeError(f"all_to_all: ranks are {sizes}. Every node has as many, so that each rank has a partner on every node. Start "
                         "equal numbers of ranks.", nodes=list(phases.layout.names))
    s, t = scatter_axis % len(shape), gather_axis % len(shape)
    slab_shape = [n // nodes if i == s else n for i, n in enumerate(shape)]     # what goes to the ranks of one node
    box = [n // phases.ranks if i == s else n for i, n in enumerate(slab_shape)]
    box[t] *= phases.ranks                                                      # what one of them gets from all of this node
    before, after = prod(shape[:s]), prod(shape[s + 1:])
    rows, line = prod(box[:t]), prod(box[t:])

    def bundle(node, chunk, target):
        """What the rank with this one's number on a node is to have from this node."""
        width = slab_shape[s] * after
        slab = memory.part(x, node * width, node * width + before * width)
        if before > 1:
            slab = memory.room("slab", before * width, chunk)
            memory.copy_rows(slab, width, memory.part(x, node * width, x.size), nodes * width, before, width)
        if phases.ranks == 1:
            memory.copy(target, slab)
        else:
            kernels.all_to_all(phases.node, memory.shaped(slab, tuple(slab_shape)), scatter_axis=s, gather_axis=t,
                               out=memory.shaped(target, tuple(box)), **phases.options)

    def place(node, chunk):
        """Where what comes from a node is put: in the result if it lies together there."""
        return memory.part(out, node * line, (node + 1) * line) if rows == 1 else memory.room("arrived", rows * line, chunk)

    def to(distance, target, source):
        chunk = distance or nodes                # this node comes last
        arrived = place(source, chunk)
        if target == phases.here:
            bundle(target, chunk, arrived)
        else:
            sent = memory.room("bundle", rows * line, chunk)
            bundle(target, chunk, sent)
            wait = phases.exchange(f"distance {distance}", [(phases.rank(target, phases.local), sent)],
                                   [(phases.rank(source, phases.local), arrived)])
            yield
            wait()
        if rows > 1:
            memory.copy_rows(memory.part(out, source * line, out.size), nodes * line, arrived, line, rows, line)

    pipelined([to(*other) for other in phases.others()] + [to(0, phases.here, phases.here)])
