"""How worlds come about: options, the choice of executor, the parts put together."""

import os

from . import driver
from .agree import first_difference
from .local import Hub, LocalLink, Threads
from .on_cpu import Cpu, PartSessions, Sessions
from ..errors import ConfigError, UnsupportedError

__all__ = ["mpi_world", "local_world", "torch_world"]

#: Options of an interpreter session; a world on GPUs takes and ignores them, so that one script runs on both.
_SESSION_OPTIONS = ("seed", "policy", "completion", "races", "max_switches", "watchdog", "trace", "schedule", "time", "card_sms")
_OPTIONS = ("num_sms", "device", "wait_limit_s", "host_limit_s", "node_size", "engine")


def mpi_world(cls, comm, executor, options):
    """What ``World.mpi`` does."""
    from .mpi import node_rank, open_link
    from .nodes import making as nodes
    own, session = _sort_options(options)
    link = open_link(comm, own["host_limit_s"])
    hosts = nodes.check_alike(link, own)
    executor = _choose_executor(executor, link)

    def make_here(part):
        if executor == "interpreter":
            return _interpreter_of_process(part, session, own["num_sms"])
        from .on_gpu import Gpu
        return Gpu(part, True, node_rank(link), own["device"], own["num_sms"], own["wait_limit_s"], whole=link)

    layout = nodes.layout_of(link, hosts, own, executor, node_rank)
    if len(layout.groups) > 1:
        return nodes.spanning(cls, link, layout, own, executor, make_here)
    return cls(link, make_here(link), executor)


def torch_world(cls, group, executor, options):
    """What ``World.torch`` does."""
    from .nodes import making as nodes
    from .torch_link import node_rank, open_link
    own, session = _sort_options(options)
    link = open_link(group, own["host_limit_s"])
    hosts = nodes.check_alike(link, own)
    executor = _choose_executor(executor, link)
    if executor == "gpu":
        from .on_gpu import Gpu

        def make_here(part):
            return Gpu(part, True, node_rank(link), own["device"], own["num_sms"], own["wait_limit_s"], whole=link)
        layout = nodes.layout_of(link, hosts, own, executor, node_rank)
        if len(layout.groups) > 1:
            return nodes.spanning(cls, link, layout, own, executor, make_here)
        return cls(link, make_here(link), executor)
    if link.size > 1:
        raise UnsupportedError(f"World.torch: {link.size} ranks on the interpreter. Interpreted ranks in several processes share memory by "
                               "MPI. Use World.mpi under mpirun, or World.local.")
    return cls(link, Cpu(link, Sessions(session), own["num_sms"]), executor)


def local_world(cls, size, executor, options):
    """What ``World.local`` does."""
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"World.local: size = {size!r}. It is a number of ranks, at least 1.")
    from .nodes import making as nodes
    own, session = _sort_options(options)
    if size > 1 and executor != "interpreter":
        ranks_as_threads()                      # before anybody asks for a GPU: CUDA reads its environment once, when it starts
    executor = _choose_executor(executor, None)
    card = session.get("card_sms") if executor == "interpreter" else None
    if card is not None and own["num_sms"] is None:
        own["num_sms"] = max(1, card // size)   # as ranks that are threads share a GPU
    crew = Threads(own["host_limit_s"]) if executor == "gpu" else Sessions(session)
    hub, layout = Hub(size, crew.block), nodes.local_layout(size, own)

    def make(rank):
        link = LocalLink(hub, rank)

        def make_here(part):
            group = layout.groups[layout.node_of(rank)]
            if executor == "interpreter":
                return Cpu(part, crew if len(group) == size else PartSessions(crew, group), own["num_sms"], sharing=card is not None)
            from .on_gpu import Gpu
            return Gpu(part, False, rank, own["device"], own["num_sms"], own["wait_limit_s"], whole=link)
        if len(layout.groups) > 1:
            return nodes.spanning(cls, link, layout, own, executor, make_here)
        return cls(link, make_here(link), executor)

    if size == 1:
        return make(0)
    from .crew import LocalWorld
    return LocalWorld(size, executor, hub, crew, make)


def ranks_as_threads():
    """Set what CUDA must find in the environment when it starts if several ranks of this process are to share a GPU. A program that makes
    a world of one rank first, and larger ones later, calls it at its beginning."""
    # Loaded at first use, a kernel of CuPy's or torch's may wait for the device, where another rank's kernel waits for this one.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    # Streams that share a hardware queue wait for each other; eight queues, the driver's default, are few for several ranks.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _sort_options(options):
    unknown = [name for name in options if name not in _OPTIONS + _SESSION_OPTIONS]
    if unknown:
        raise ConfigError(f"World: no option {unknown[0]!r}. The options are "
                          f"{', '.join(_OPTIONS + _SESSION_OPTIONS)}.", field=unknown[0])
    own = {name: options.get(name) for name in _OPTIONS}
    if own["host_limit_s"] is None:
        own["host_limit_s"] = float(os.environ.get("PKNUMBA_HOST_LIMIT_S", "600"))
    return own, {name: value for name, value in options.items() if name in _SESSION_OPTIONS}


def _choose_executor(executor, link):
    if executor == "auto":
        executor = os.environ.get("PKNUMBA_EXECUTOR", "auto")
    if executor not in ("auto", "gpu", "interpreter"):
        raise ConfigError(f"World: executor = {executor!r}. It is \"auto\", \"gpu\" or \"interpreter\".")
    mine = driver.available()[0] if executor == "auto" else None
    said = [(executor, mine)] if link is None else link.allgather((executor, mine), "World.mpi")
    error = first_difference("World.mpi", [[("executor", name)] for name, _ in said])
    if error is not None:
        raise error
    return executor if executor != "auto" else "gpu" if all(found for _, found in said) else "interpreter"


def _interpreter_of_process(link, options, num_sms):
    """The Cpu of a rank whose peers are other processes: their arrays and counters live in a shared heap."""
    if link.size == 1:
        return Cpu(link, Sessions(options), num_sms)
    from ..interpreter.mpi import SharedHeap
    link.heap = heap = SharedHeap(link.comm, link.limit_s)
    heap.peers = link.peers
    return Cpu(link, Sessions({**options, "heap": heap}), num_sms, heap)
