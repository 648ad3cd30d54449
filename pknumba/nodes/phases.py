"""What the operators that span nodes have in common: one call's facts, its exchanges, its phases inside the node."""

from .. import kernels
from ..runtime.nodes.engine import chunk_bytes
from .cuts import chunks, equal, overlaps
from .memory import Memory

__all__ = ["Phases"]


class Phases:
    """One call of an operator on this rank.

    Attributes: ``world``, ``node`` (World), ``layout``, ``memory``; ``here``, ``local``: number of this rank's node, and of this rank on
    it; ``nodes``, ``ranks``: how many there are, of ranks on this node; ``most``: elements of a chunk.
    """

    def __init__(self, world, name, dtype, stream, config=None):
        self.world, self.node, self.layout = world, world.node, world.layout
        self.here, self.local = world.here
        self.nodes, self.ranks = len(self.layout.sizes), self.layout.sizes[self.here]
        self.memory = Memory(world, dtype, stream)
        self.most = max(chunk_bytes() // self.memory.size, 1)
        world.calls += 1
        self.name, self.number = name, world.calls
        self.options = dict(config=config, stream=self.memory.given)

    # ---- between nodes
    def exchange(self, step, sends, receives):
        """Begin an exchange; ``step`` is a text that both ends of each message use. Returns a function that waits for it."""
        engine = self.world.across.engine
        begun = engine.start(sends, receives, f"{self.name}, call {self.number}, {step}", self.memory.stream)
        return lambda: engine.wait(begun)

    def rank(self, node, local):
        """The rank with that number on a node."""
        return self.layout.rank_of(node, local)

    def others(self):
        """(distance, node to send to, node to receive from) of every other node, nearest first."""
        return [(d, (self.here + d) % self.nodes, (self.here - d) % self.nodes) for d in range(1, self.nodes)]

    # ---- cutting
    def chunks(self, n):
        """Intervals of n elements; all but the last can be cut evenly on every node, into whole 16-byte units for every owner."""
        step = self.layout.common * self.nodes * (16 // self.memory.size)
        return chunks(n, min(self.most, -(-n // 2)), step)

    def cuts(self, n):
        """For every node, how its ranks share n elements."""
        return [equal(n, size) for size in self.layout.sizes]

    def mine(self, n):
        """(length of a full part, this rank's part) of n elements shared by the ranks of this node."""
        return -(-n // self.ranks), equal(n, self.ranks)[self.local]

    def rooms(self, n):
        """A workspace of n elements for what comes from each node, this one included."""
        step = -(-n // 16) * 16
        came = self.memory.room("terms", self.nodes * step)
        return [self.memory.part(came, node * step, node * step + n) for node in range(self.nodes)]

    # ---- inside the node
    def scattered(self, name, source, op, chunk):
        """This rank's part of the sum over the node's ranks of ``source``, in a workspace as long as a full part."""
        length, _ = self.mine(source.size)
        part = self.memory.room(f"{name} part", length, chunk)
        if self.ranks == 1:
            self.memory.copy(part, source)
        else:
            kernels.reduce_scatter(self.node, self.padded(source, length * self.ranks, chunk), op=op, out=part, **self.options)
        return part

    def gathered(self, part, target, chunk):
        """target = the parts of the node's ranks one after the other, cut off where it ends."""
        if self.ranks == 1:
            self.memory.copy(target, self.memory.part(part, 0, target.size))
            return
        whole = part.size * self.ranks
        into = target if target.size == whole else self.memory.room("gathered", whole, chunk)
        kernels.all_gather(self.node, part, out=into, **self.options)
        self.memory.copy(target, self.memory.part(into, 0, target.size))

    def padded(self, source, n, chunk):
        """``source``, or a copy that is n elements long, with zeros at the end."""
        if source.size == n:
            return source
        room = self.memory.room("padded", n, chunk)
        self.memory.copy(room, source)
        self.memory.clear(self.memory.part(room, source.size, n))
        return room

    def meets(self, array, interval, cuts, node):
        """(rank, view) of what a node's ranks, which share as ``cuts`` says, have of an array that holds that interval."""
        first = interval[0]
        return [(self.rank(node, i), self.memory.part(array, a - first, b - first)) for i, a, b in overlaps(interval, cuts)]
