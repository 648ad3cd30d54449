"""What operators cost on many nodes, on paper: the cost model of one node, a link for each node beside it.

A call is cut into chunks. Inside a node a chunk takes the links between its ranks, between nodes the network; while one chunk is in the
network the kernels of the next run, so of the two the longer counts, and the shorter once. Nothing here was measured on a network; bytes
are those that ``pknumba.nodes`` sends (a test counts them), latencies and rates are figures with their sources.
"""

from dataclasses import dataclass, replace
from math import ceil, log2

from ..errors import ConfigError
from .hardware import H200, Figure
from .model import predict

__all__ = ["Network", "Scale", "across", "across_product", "table", "CLUSTERS", "INFINIBAND", "ETHERNET", "NVL72"]


@dataclass(frozen=True)
class Network:
    """What joins nodes. Rates are of one rank, per second and direction.

    Attributes:
        name: for people. latency_s: from a send to its arrival. message_s: host time of one more message. bandwidth: bytes of a rank, if
            each has its own adapter; node_bandwidth: bytes of all ranks of a node together, 0 where only ranks' own adapters limit.
    """

    name: str
    latency_s: Figure
    message_s: Figure
    bandwidth: Figure
    node_bandwidth: Figure = Figure(0, "each rank has an adapter of its own")

    def rate(self, ranks):
        """Bytes per second of each of so many ranks of a node that send at once."""
        return min(self.bandwidth, self.node_bandwidth / ranks) if self.node_bandwidth else self.bandwidth


_NOT = "; not measured"
INFINIBAND = Network("InfiniBand NDR, 400 Gb/s a GPU", Figure(5e-6, "two switch hops and GPUDirect, an estimate" + _NOT),
                     Figure(5e-7, "posting one message, an estimate" + _NOT), Figure(50e9 * 0.92, "400 Gb/s less headers" + _NOT))
ETHERNET = Network("Ethernet, 100 Gb/s a node, TCP", Figure(3e-5, "TCP through the kernel, an estimate" + _NOT),
                   Figure(3e-6, "a system call and its copies, an estimate" + _NOT), Figure(12.5e9 * 0.9, "100 Gb/s less headers" + _NOT),
                   Figure(12.5e9 * 0.9, "one adapter for the node" + _NOT))
#: Ranks of a domain of 72 GPUs: the card that is measured here, on links of twice its rate.
NVL72 = H200.replace(link=Figure(900e9, "NVLink 5, data sheet" + _NOT), register=Figure(2 * H200.register, "twice NVLink 4's" + _NOT),
                     tma=Figure(2 * H200.tma, "twice NVLink 4's" + _NOT))
#: Name -> (ranks of a node, their card, network).
CLUSTERS = {"8, InfiniBand": (8, H200, INFINIBAND), "8, Ethernet": (8, H200, ETHERNET), "72, InfiniBand": (72, NVL72, INFINIBAND)}
#: How a call may be split between the two kinds of link.
SPLITS = ("two phases", "tree", "one leader", "flat")
CHUNKS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Scale:
    """Seconds of one call on many nodes.

    Attributes: inside, between: in the links of nodes and in the network, all chunks; chunks: how many there are; split: which of SPLITS;
    crossing: bytes that all ranks together send to other nodes.
    """

    inside: float
    between: float
    chunks: int
    split: str
    crossing: float

    @property
    def seconds(self):
        """The longer of both, and of the shorter what the first chunk takes."""
        return max(self.inside, self.between) + min(self.inside, self.between) / self.chunks

    @property
    def bound(self):
        """Which decides: "inside" or "between"."""
        return "between" if self.between > self.inside else "inside"


#: Operator -> (bytes inside a node, bytes to and from other nodes, exchanges in a row), of one rank, as functions of n nodes of g ranks
#: and the b bytes of x.
_COSTS = {
    "all_reduce": (lambda n, g, b: 2 * b * (g - 1) / g, lambda n, g, b: 2 * b / g * (n - 1) / n, 2),
    "reduce_scatter": (lambda n, g, b: b * (g - 1) / g, lambda n, g, b: b / g * (n - 1) / n, 1),
    "all_gather": (lambda n, g, b: n * b * (g - 1), lambda n, g, b: b * (n - 1), 1),
    "all_to_all": (lambda n, g, b: b * (g - 1) / g, lambda n, g, b: b * (n - 1) / n, 1),
    "broadcast": (lambda n, g, b: b * (g - 1) / g, lambda n, g, b: 2 * b / g, 1),
    "reduce": (lambda n, g, b: b * (g - 1) / g, lambda n, g, b: 2 * b / g, 1),
}
_TREES = ("broadcast", "reduce")


def crossing(op, nbytes, nodes, ranks):
    """Bytes that all ranks together send to other nodes: the fewest possible."""
    total = nodes * ranks * _COSTS[op][1](nodes, ranks, nbytes)
    return (nodes - 1) * nbytes if op in _TREES else total


def across(op, nbytes, nodes, cluster="8, InfiniBand", split=None, chunks=None):
    """The Scale of a collective.

    Args:
        op: name of a collective. nbytes: of x on each rank. nodes: how many. cluster: name in CLUSTERS, or (ranks, Hardware, Network).
        split: one of SPLITS; the best by default. "two phases": ranks with one number exchange directly; "tree": all_reduce up and down a
            binary tree of nodes, few messages in a row; "one leader": one rank of each node speaks for it; "flat": every rank exchanges
            with every other through the network, as if there were no nodes. ``pknumba.nodes`` does the first, and the second where it
            is better. chunks: the best number by default.

    Raises ConfigError for an operator that the model does not know.
    """
    if op not in _COSTS:
        raise ConfigError(f"tuning: no collective {op!r}. The model knows {', '.join(_COSTS)}. Use one of these.", op=op)
    ranks, card, network = CLUSTERS[cluster] if isinstance(cluster, str) else cluster
    splits = [s for s in SPLITS if s != "tree" or op == "all_reduce"]
    tries = [(s, c) for s in (splits if split is None else (split,)) for c in (CHUNKS if chunks is None else (chunks,))]
    return min((_across(op, nbytes, nodes, ranks, card, network, s, c) for s, c in tries), key=lambda found: found.seconds)


def _across(op, b, n, g, card, network, split, chunks):
    inside, between, exchanges = _COSTS[op]
    kernels = 1 if op in ("reduce_scatter", "all_to_all") else 2
    if n == 1:
        return Scale(chunks * (card.launch_s + 2 * card.peer_s) + inside(1, g, b) / card.register, 0.0, chunks, split, 0)
    if split == "flat":
        link = network.rate(g)
        return Scale(0.0, chunks * _exchange(op, n * g, exchanges, network) + between(n * g, 1, b) / link, chunks, split,
                     n * g * between(n * g, 1, b))
    if split == "tree":
        steps, sent = 2 * ceil(log2(n)) * (network.latency_s + 2 * network.message_s), 4 * b / g
        return Scale(2 * chunks * (card.launch_s + 2 * card.peer_s) + inside(n, g, b) / card.register,
                     chunks * steps + sent / network.rate(g), chunks, split, crossing(op, b, n, g))
    lanes = 1 if split == "one leader" else g
    here = inside(n, g, b) if lanes == g else inside(n, g, b) * g / 2      # all of it goes into and out of one rank
    sent = between(n, g, b) * g / lanes
    return Scale(chunks * kernels * (card.launch_s + 2 * card.peer_s) + here / card.register,
                 chunks * _exchange(op, n, exchanges, network) + sent / network.rate(lanes), chunks, split, crossing(op, b, n, g))


def _exchange(op, partners, exchanges, network):
    """Seconds of an exchange without its bytes: a message to each partner, or the levels of a tree."""
    if op in _TREES:
        return ceil(log2(partners)) * (network.latency_s + 2 * network.message_s)
    return exchanges * (network.latency_s + (partners - 1) * network.message_s)


def across_product(op, m, n, k, nodes, cluster="8, InfiniBand", chunks=None):
    """The Scale of gemm_all_reduce, gemm_reduce_scatter or all_gather_gemm; ``inside`` holds the product.

    Args:
        m, n, k: the product of one rank (all rows of A for all_gather_gemm). nodes, cluster, chunks: as in :func:`across`.
    """
    ranks, card, network = CLUSTERS[cluster] if isinstance(cluster, str) else cluster
    collective, fused, nbytes = {
        "gemm_all_reduce": ("all_reduce", "gemm_reduce_scatter", 2 * m * n),
        "gemm_reduce_scatter": ("reduce_scatter", "gemm_reduce_scatter", 2 * m * n),
        "all_gather_gemm": ("all_gather", "all_gather_gemm", 2 * m * k / (nodes * ranks))}[op]
    found = []
    for c in (CHUNKS if chunks is None else (chunks,)):
        rows = max(m // c, 1)
        here = c * predict(fused, rows, n, k, ranks, hardware=card).seconds
        if op == "gemm_all_reduce":
            here += 2 * m * n * (ranks - 1) / ranks / card.register
        travel = replace(_across(collective, nbytes, nodes, ranks, card, network, "two phases", c), inside=here)
        found.append(travel if nodes > 1 else replace(travel, between=0.0))
    return min(found, key=lambda scale: scale.seconds)


def table(op="all_reduce", sizes=(1 << 20, 64 << 20, 1 << 30), counts=(2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)):
    """Rows of Markdown: for every cluster and number of nodes the time of each size, what decides and the best split."""
    head = "| nodes x ranks, network | " + " | ".join(_size(s) for s in sizes) + " |"
    rows = [head, "|---" * (len(sizes) + 1) + "|"]
    for name, (ranks, *_) in CLUSTERS.items():
        for n in counts:
            cells = [across(op, size, n, name) for size in sizes]
            rows.append(f"| {n} x {ranks}, {name.split(', ')[1]} | " + " | ".join(_cell(c) for c in cells) + " |")
    return rows


def _cell(found):
    time = f"{found.seconds * 1e3:.3g} ms" if found.seconds >= 1e-3 else f"{found.seconds * 1e6:.0f} µs"
    return f"{time}, **{found.bound}**, {found.split}, {found.chunks}"


def _size(nbytes):
    return f"{nbytes >> 30} GiB" if nbytes >= 1 << 30 else f"{nbytes >> 20} MiB"
