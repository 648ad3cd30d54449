"""Which ranks of a world are on one node: those that can map each other's memory.

Processes that share memory are candidates; on GPUs each of them then maps a page of every other by CUDA IPC, which needs peer access.
``PKNUMBA_NODE_SIZE=n`` (or ``World.mpi(node_size=n)``) cuts a machine into pretended nodes of n ranks.
"""

import os
import warnings
from math import lcm

from .. import driver
from ...errors import ConfigError, PknumbaError, WorldError

__all__ = ["Layout", "cut", "mapped", "node_size"]


class Layout:
    """The nodes of a world.

    Attributes:
        groups: for each node its ranks, in order and consecutive. names: for each node its host's name; pretended nodes of one host
            are numbered after a "+".
        home: for each rank (number of its node, number on that node).
        sizes: ranks of each node; even: whether all nodes have as many.
    """

    def __init__(self, groups, names):
        self.groups = tuple(tuple(group) for group in groups)
        repeated = [names.count(name) > 1 for name in names]
        self.names = [f"{name}+{names[:i].count(name)}" if repeated[i] else name for i, name in enumerate(names)]
        self.sizes = tuple(map(len, self.groups))
        self.even = len(set(self.sizes)) == 1
        self.home = [(node, local) for node, size in enumerate(self.sizes) for local in range(size)]
        for name, group in zip(self.names, self.groups):
            if list(group) != list(range(group[0], group[0] + len(group))):
                raise WorldError(f"World.mpi: node {name} has ranks {', '.join(map(str, group))}. The ranks of a node are consecutive. "
                                 "Start them node after node (mpirun --map-by slot, srun -m block).", node=name)

    @property
    def common(self):
        """The least number that every node's size divides."""
        return lcm(*self.sizes)

    def node_of(self, rank):
        """Number of a rank's node."""
        return self.home[rank][0]

    def rank_of(self, node, local):
        """The rank with that number on a node."""
        return self.groups[node][local]

    def part(self, ranks):
        """The Layout of a world of some ranks, in that order."""
        groups = {}
        for i, rank in enumerate(ranks):
            groups.setdefault(self.node_of(rank), []).append(i)
        return Layout(groups.values(), [self.names[node] for node in groups])

    def say(self, ranks):
        """"rank 2 on node beta" or "ranks 0 and 1 on node alpha, rank 2 on node beta"."""
        from ..agree import ranks_text
        groups = {}
        for rank in ranks:
            groups.setdefault(self.node_of(rank), []).append(rank)
        return ", ".join(f"{ranks_text(found)} on node {self.names[node]}" for node, found in groups.items())


def node_size(given):
    """Ranks of a pretended node: the option, else PKNUMBA_NODE_SIZE; None where neither is set."""
    text = os.environ.get("PKNUMBA_NODE_SIZE") if given is None else str(given)
    if text in (None, ""):
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"World: node_size = {text}. It is the number of ranks that count as one node. Give one that is at least 1, or "
                          "unset PKNUMBA_NODE_SIZE.", field="node_size")
    return int(text)


def cut(ranks, size):
    """Groups of ``size`` of the ranks, the last with what is left; all of them for None."""
    size = size or len(ranks)
    return [ranks[i:i + size] for i in range(0, len(ranks), size)]


def mapped(link, device):
    """Groups of the ranks of a link (all on one host) that can map each other's device memory. Collective."""
    driver.make_current(device)
    own, problems = driver.alloc(driver.IPC_GRANULARITY), {}
    try:
        for rank, handle in enumerate(link.allgather(_offer(own), "World.mpi")):
            if rank != link.rank:
                problems[rank] = handle if isinstance(handle, PknumbaError) else _try(handle)
        said = link.allgather({rank: str(why) for rank, why in problems.items() if why}, "World.mpi")
    finally:
        link.barrier("World.mpi")
        driver.free(own)
    groups = []
    for rank in range(link.size):
        home = next((g for g in groups if not any(rank in said[r] or r in said[rank] for r in g)), None)
        groups.append([rank]) if home is None else home.append(rank)
    if len(groups) > 1 and link.rank == 0:
        why = next(text for found in said for text in found.values())
        warnings.warn(f"World: the ranks of this host fall into {len(groups)} groups that cannot map each other's memory ({why}). Each "
                      "counts as a node; between them data go through the engine.", RuntimeWarning, stacklevel=4)
    return groups


def _offer(pointer):
    try:
        return driver.ipc_export(pointer)
    except PknumbaError as error:
        return error


def _try(handle):
    """What is wrong with mapping a peer's page; None if nothing is."""
    try:
        driver.ipc_close(driver.ipc_open(handle))
    except PknumbaError as error:
        return error
