"""A world that spans nodes: it hands what is inside a node to a world of the node, and knows who is where."""

from contextlib import contextmanager
from math import prod

from .. import agree as agreement
from .. import device_array, dtypes
from ..hang import ALARM
from ..symmetric import SymmetricArray
from ..world import World
from ...errors import HangError, PknumbaError, ShapeError, UnsupportedError, WorldError

__all__ = ["Across", "NodeArray", "SpanningWorld"]


class Across:
    """The ranks with one number on their nodes, one on each node that has as many.

    Attributes:
        ranks: their ranks in the world, by node; rank, size: this one's place among them.
        engine: what carries data between nodes (``engine.Engine``); its ``sent`` counts the bytes of this rank.
    """

    def __init__(self, layout, rank, engine):
        local = layout.home[rank][1]
        self.ranks = tuple(group[local] for group in layout.groups if local < len(group))
        self.rank, self.size, self.engine = self.ranks.index(rank), len(self.ranks), engine

    def __repr__(self):
        return f"Across(ranks {list(self.ranks)}, engine {self.engine and self.engine.name})"


class SpanningWorld(World):
    """One rank's view of a world of several nodes; made by ``World.mpi`` and ``World.local``.

    Operators that can work in two phases: inside each node by pknumba's kernels, between nodes by an engine. Others say that they
    cannot (UnsupportedError). ``symmetric`` gives memory that the ranks of the same node see.

    Attributes, besides those of World: ``node``: the World of this rank's node; ``across``: Across; ``layout``: who is where.
    """

    spans, alarm = True, ALARM

    def __init__(self, link, node, layout, make_engine, parent=None):
        self._link, self._here, self.executor, self._parent = link, node._here, node.executor, parent
        self.rank, self.size, self.closed, self.layout = link.rank, link.size, False, layout
        self.device, self.num_sms, self.stream = node.device, node.num_sms, node.stream
        self.sharing, self.crowded = node.sharing, node.crowded
        self.error_record, self.abort_word, self.abort_table = node.error_record, node.abort_word, node.abort_table
        self._broken, self._parts, self._made, self._make_engine = None, [], 0, make_engine
        self.calls = 0  # of operators that span nodes: the same number on every rank
        self.cache, self._node = {}, node
        self._link.say = layout.say
        self._across = Across(layout, self.rank, make_engine(link.split(tuple(range(self.size))), layout, self._here))

    # ---- nodes
    @property
    def node(self):
        """The World of the ranks of this node."""
        return self._node

    @property
    def across(self):
        """The Across of this rank."""
        return self._across

    @property
    def here(self):
        """(number of this rank's node, number of this rank on it)."""
        return self.layout.home[self.rank]

    @contextmanager
    def inside(self, name):
        """Context of an operator's phases: an error says on which node it came about; a rank that is missing breaks the world."""
        try:
            yield
        except PknumbaError as error:
            if isinstance(error, (HangError, WorldError)):
                self._break(str(error), error)
            if not hasattr(error, "nodes"):
                node, group = self.layout.names[self.here[0]], self.layout.groups[self.here[0]]
                who = f"rank {group[0]}, there 0" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}, there 0 to {len(group) - 1}"
                raise type(error)(f"{name} inside node {node} ({who}): {error}", **{**error.data, "nodes": [node]}) from error
            raise

    # ---- meeting
    def agree(self, subject, value):
        """As in World; the message names nodes too."""
        everyone = self._exchange(agreement.lines(value), f"agree on {subject}")
        error = agreement.first_difference(subject, everyone, self.layout.say)
        if error is not None:
            raise error

    def split(self, ranks):
        """As in World: a world of some ranks, which spans nodes if they do."""
        self._enter()
        ranks = agreement.members(ranks, self.size)
        if self.rank not in ranks:
            return None
        mine = [r for r in ranks if self.layout.node_of(r) == self.here[0]]
        node = self._node.split([self.layout.home[r][1] for r in mine])
        if len(mine) == len(ranks):
            return node
        part = SpanningWorld(self._link.split(ranks), node, self.layout.part(ranks), self._make_engine, self)
        self._parts.append(part)
        return part

    # ---- memory and device: the node's
    def symmetric(self, shape, dtype="bfloat16"):
        """A NodeArray: memory of one shape on every rank, of which the ranks of a node see each other's. Collective."""
        self._enter()
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        dtype = dtypes.name_of(dtype)
        if not shape or min(shape) < 0:
            raise ShapeError(f"World.symmetric: shape {shape}. It has at least one dimension, and none is negative.")
        self.agree("World.symmetric", {"shape": shape, "dtype": dtype})
        self._made += 1
        return NodeArray(self, shape, dtype, self._made)

    def counters(self, name, n):
        """Counters reach no further than a node."""
        raise UnsupportedError(f"World.counters({name}): this world spans {len(self.layout.sizes)} nodes. Kernels signal inside a node "
                               "only. Use world.node.")

    @property
    def session(self):
        """As in World."""
        return self._node.session

    def context(self, limit_s=None, names=None):
        """As in World, for kernels of this rank's node."""
        return self._node.context(limit_s, names)

    def synchronize(self, stream=None):
        """As in World; what other nodes owe is waited for too."""
        self._enter()
        pointer = self._here.stream_of(stream, ())
        engine = self._across.engine
        if engine.asynchronous:
            from .. import driver
            from .engine import poll
            poll(lambda: driver.stream_done(pointer), 0, None, self.check)
        self._here.synchronize(pointer)
        self.check()

    def check(self):
        """As in World."""
        if self._broken or self.closed:
            self._enter()
        try:
            self._node.check()
            self._across.engine.check()
        except PknumbaError as error:
            self._break(str(error), error)
            raise

    def _break(self, why, error=None):
        if not self._broken:
            self._broken = why
            heap = getattr(self._here, "heap", None)
            if heap is not None and hasattr(heap, "failed"):
                heap.failed(error or WorldError(f"World: {why}"))       # for ranks of this node that wait in a kernel
            self._node._break(why, error)        # every other rank is told

    # ---- the end
    def close(self):
        """Give back everything. Collective; a broken world gives back what it can alone."""
        if self.closed:
            return
        if self._broken:
            self._give_up()
            return
        for part in self._parts[::-1]:
            part.close()
        self.barrier()                           # nobody is still in an exchange
        self.closed = True
        self.cache.clear()
        self._across.engine.close()
        if self._parent is None:
            self._node.close()
        self._link.close()

    def _give_up(self, alone=False):
        if self.closed:
            return
        for part in self._parts[::-1]:
            part._give_up(alone)
        self.closed = True
        self.cache.clear()
        self._across.engine.abandon()
        if not self._node.closed and self._parent is None:
            self._node._give_up(alone)

    def __repr__(self):
        where = "interpreter" if self.executor == "interpreter" else f"gpu {self.device}"
        return (f"World(rank {self.rank} of {self.size} on {len(self.layout.sizes)} nodes, {where}, engine {self._across.engine.name}"
                f"{', closed' if self.closed else ''})")


class NodeArray(SymmetricArray):
    """A SymmetricArray of a world that spans nodes: contiguous, and ``peer`` reaches the ranks of this node.

    Attributes: ``inner``: the same memory as one dimension, of the node's world.
    """

    def __init__(self, world, shape, dtype, number):
        self.shape, self.dtype, self.world, self.number = shape, dtype, world, number
        self.inner = world.node.symmetric((max(prod(shape), 1),), dtype)
        size = dtypes.itemsize(dtype)
        strides = [size * prod(shape[i + 1:]) for i in range(len(shape))]
        self.pitch, self.strides = (strides[-2] if len(shape) > 1 else size * shape[0]), tuple(strides)
        self.device, self._block, self._views = self.inner.device, self.inner._block, {}

    @property
    def local(self):
        """This rank's array."""
        return self.peer(self.world.rank)

    def peer(self, rank):
        """The array of `rank`. Raises WorldError for a rank on another node."""
        self._alive()
        if rank not in self._views:
            if not 0 <= rank < self.world.size or self.world.layout.node_of(rank) != self.world.here[0]:
                node, layout = self.world.here[0], self.world.layout
                raise WorldError(f"{self}: peer({rank}). Memory is seen inside a node. This one is {layout.names[node]} with ranks "
                                 f"{list(layout.groups[node])}.")
            self._views[rank] = self._view(self.world.layout.home[rank][1])
        return self._views[rank]

    @property
    def pointer(self):
        """Address of this rank's first element."""
        self._alive()
        return self.inner.pointer

    def _view(self, local):
        if self._block.arrays is None:
            return device_array.wrap(self._block.pointers[local], self.shape, self.strides, self.dtype, self.device, self)
        return self.inner.peer(local)[:prod(self.shape)].reshape(self.shape)

    def close(self):
        """Give the memory back on all ranks of the node (collective)."""
        if not self.closed:
            self.closed = True
            if not self.inner.world.closed:
                self.inner.close()
