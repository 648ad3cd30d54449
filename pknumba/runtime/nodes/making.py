"""How worlds that span nodes come about."""

import socket
import sys

from . import choice
from .engine import chunk_bytes
from .layout import Layout, cut, mapped, node_size
from .world import SpanningWorld
from .. import driver
from ..agree import first_difference

__all__ = ["check_alike", "layout_of", "local_layout", "spanning"]


def check_alike(link, own):
    """What ranks must have in common before anything else: raise WorldError or ConfigError, naming ranks and hosts, where they differ."""
    version = sys.modules[__name__.partition(".")[0]].__version__
    mine = [("pknumba.__version__", version), ("host", socket.gethostname()), ("engine", choice.wanted(own["engine"])),
            ("node_size", str(node_size(own["node_size"]))), ("PKNUMBA_CHUNK_BYTES", str(chunk_bytes()))]
    said = link.allgather(mine, "World.mpi")
    hosts = [dict(found)["host"] for found in said]

    def say(ranks):
        return ", ".join(f"rank {rank} on {hosts[rank]}" for rank in ranks)
    error = first_difference("World.mpi", [[pair for pair in found if pair[0] != "host"] for found in said], say)
    if error is not None:
        raise error
    return hosts


def layout_of(link, hosts, own, executor, seat):
    """The Layout of a world of processes. Collective.

    Args:
        hosts: every rank's host. own: options. seat: function (link) of this process's number on its host.
    """
    sharing = link.allgather(link.sharing, "World.mpi")
    groups = sorted(set(sharing))
    if executor == "gpu":
        groups = _mapped(link, groups, own, seat)
    size = node_size(own["node_size"])
    groups = sorted(group for found in groups for group in cut(list(found), size))
    return Layout(groups, [hosts[group[0]] for group in groups])


def _mapped(link, groups, own, seat):
    """The groups, each cut into those that can map each other's memory."""
    mine = next(group for group in groups if link.rank in group)
    found = [mine]
    if len(mine) > 1:
        part = link.split(mine)
        device = seat(link) % max(driver.device_count(), 1) if own["device"] is None else own["device"]
        found = [tuple(mine[r] for r in group) for group in mapped(part, device)]
        part.close()
    return sorted({group for said in link.allgather(found, "World.mpi") for group in said})


def local_layout(size, own):
    """The Layout of a world in one process."""
    groups = cut(list(range(size)), node_size(own["node_size"]))
    return Layout(groups, ["local"] * len(groups))


def spanning(cls, link, layout, own, executor, make_here):
    """The SpanningWorld of this rank.

    Args:
        cls: World. make_here: function (link of the node) of the Cpu or Gpu of this rank.
    """
    group = layout.groups[layout.node_of(link.rank)]
    node_link = link.split(group)
    node = cls(node_link, make_here(node_link), executor)
    name = choice.wanted(own["engine"])

    def make_engine(engine_link, part, here):
        engine_link.node_heap = getattr(here, "heap", None)
        return choice.make_engine(name, engine_link, part, here, executor)
    return SpanningWorld(link, node, layout, make_engine)
