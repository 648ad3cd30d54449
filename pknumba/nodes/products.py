"""gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm on worlds that span nodes: the fused kernels of one node, row block by row
block, with the exchange between nodes of one block under way while the next is multiplied."""

from dataclasses import fields

from .. import kernels
from ..config import GemmReduceScatterConfig
from ..templates.forms import share
from .cuts import chunks, spread
from .reductions import reduced_everywhere
from .schedule import pipelined

__all__ = ["gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"]

#: Rows of a block at least, for each rank of a node: fewer would leave tiles half empty.
ROWS = 128


class _Blocks:
    """Rows of a product or of A by node; ``rows``: (first, end) of each node's. Everything else is in elements of a node's block."""

    def __init__(self, layout, m, cols):
        self.layout, self.cols = layout, cols
        self._of = [share(m, len(layout.home), rank) for rank in range(len(layout.home))]      # (first row, rows) of every rank
        self.rows = [(self._of[group[0]][0], sum(self._of[group[-1]])) for group in layout.groups]

    def shares(self, node):
        """Those of the node's ranks."""
        base, shares = self.rows[node][0], [self._of[rank] for rank in self.layout.groups[node]]
        return [((first - base) * self.cols, (first - base + n) * self.cols) for first, n in shares]

    def parts(self, node, ranks):
        """The parts in which so many ranks of any node have it."""
        first, end = self.rows[node]
        return [(a * self.cols, b * self.cols) for a, b in spread(end - first, ranks)]


def gemm_all_reduce(phases, found, A, B, C, config):
    """Each block: gemm_reduce_scatter in the node, the sum over nodes of every rank's rows, all_gather in the node."""
    m, n = found.m, found.b.shape[1]
    step = phases.layout.common * ROWS
    if config is not None:
        names = {f.name for f in fields(GemmReduceScatterConfig)}
        config = GemmReduceScatterConfig(**{f.name: getattr(config, f.name) for f in fields(config) if f.name in names})
    pipelined(_gemm_all_reduce(phases, found, B, C, config, rows, i)
              for i, rows in enumerate(chunks(m, max(phases.most // n, min(step, -(-m // 2))), min(step, max(m, 1)))))


def _gemm_all_reduce(phases, found, B, C, config, block, chunk):
    memory, n, rows = phases.memory, found.b.shape[1], block[1] - block[0]
    cuts = [[(a * n, b * n) for a, b in spread(rows, size)] for size in phases.layout.sizes]
    mine, most = cuts[phases.here][phases.local], -(-rows // phases.ranks) * n
    part = memory.room("product", most, chunk)
    held = memory.part(part, 0, mine[1] - mine[0])
    _multiplied(phases, memory.matrix(found.a, *block), B, memory.shaped(held, (held.size // n, n)), config)
    yield from reduced_everywhere(phases, held, mine, cuts, "sum", chunk)
    whole = memory.part(C, block[0] * n, block[1] * n)
    if phases.ranks == 1 or rows % phases.ranks == 0:
        phases.gathered(part, whole, chunk)
        return
    parts = memory.room("products", most * phases.ranks, chunk)
    phases.gathered(part, parts, chunk)
    for i, (a, b) in enumerate(cuts[phases.here]):
        memory.copy(memory.part(whole, a, b), memory.part(parts, i * most, i * most + b - a))


def _multiplied(phases, A, B, out, config):
    """This rank's rows of the sum of A @ B over the node."""
    if out.shape[0] or phases.ranks > 1:
        kernels.gemm_reduce_scatter(phases.node, A, B, out=out, config=config, stream=phases.memory.given)


def gemm_reduce_scatter(phases, found, A, B, C, config):
    """For one node after the other, the next one's first: the rows of its ranks, each part sent to those whose rows they are."""
    memory, n = phases.memory, found.b.shape[1]
    blocks = _Blocks(phases.layout, found.m, n)
    rooms = phases.rooms(C.size)

    def to(distance, target, source):
        mine = blocks.parts(target, phases.ranks)[phases.local]
        part = memory.room("product", mine[1] - mine[0], distance or phases.nodes)
        _multiplied(phases, memory.matrix(found.a, *blocks.rows[target]), B, memory.shaped(part, (part.size // n, n)), config)
        if target == phases.here:
            memory.copy(rooms[target], part)
            return
        own = blocks.shares(phases.here)[phases.local]
        wait = phases.exchange(f"distance {distance}", phases.meets(part, mine, blocks.shares(target), target),
                               phases.meets(rooms[source], own, blocks.parts(phases.here, phases.layout.sizes[source]), source))
        yield
        wait()

    pipelined([to(*other) for other in phases.others()] + [to(0, phases.here, phases.here)])
    memory.combine(C, rooms, "sum")


def all_gather_gemm(phases, found, A, B, C, config):
    """This node's rows first; those of other nodes come meanwhile, in as many parts as this node has ranks."""
    memory, (k, n) = phases.memory, found.b.shape
    blocks = _Blocks(phases.layout, found.m, k)

    def multiplied(node, shard):
        first, end = blocks.rows[node]
        if end > first:
            kernels.all_gather_gemm(phases.node, shard, B, rows=end - first, config=config, stream=memory.given,
                                    out=memory.shaped(memory.part(C, first * n, end * n), (end - first, n)))

    def own():
        multiplied(phases.here, memory.matrix(found.a, 0, found.a.shape[0]))
        yield

    def other(distance, target, source):
        mine = blocks.parts(source, phases.ranks)[phases.local]
        part = memory.room("shard", mine[1] - mine[0], distance)
        sent = blocks.parts(phases.here, phases.layout.sizes[target])
        wait = phases.exchange(f"distance {distance}", phases.meets(A, blocks.shares(phases.here)[phases.local], sent, target),
                               phases.meets(part, mine, blocks.shares(source), source))
        yield
        wait()
        multiplied(source, memory.shaped(part, (part.size // k if k else mine[1] - mine[0], k)))

    first, *later = phases.others()
    pipelined([other(*first), own(), *(other(*o) for o in later)])
