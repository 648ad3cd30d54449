"""Engines over MPI: host memory as it is, device memory where MPI takes it, and device memory staged through pinned host memory."""

import os
import zlib
from collections import deque

from .engine import Engine, poll
from .events import Event
from .. import driver
from ...errors import UnsupportedError, WorldError

__all__ = ["HostEngine", "CudaAware", "Staged", "is_cuda_aware"]

#: Bytes of a piece that is copied to the host while the one before it is sent.
PIECE = 4 << 20
_TAGS = 1 << 30
#: Exchanges that broken worlds have left in flight.
_LEFT = []


class HostEngine(Engine):
    """NumPy arrays (interpreter): every message is an MPI message."""

    name = "mpi"

    def __init__(self, link, layout, here):
        super().__init__(link, layout, here)
        self.bound = min(link.comm.Get_attr(link.mpi.TAG_UB), _TAGS)
        self.running = []

    def _start(self, sends, receives, label, stream):
        exchange = self._exchange(sends, receives, label, stream)
        self.running.append(exchange)
        self._progress()
        return exchange

    def _exchange(self, sends, receives, label, stream):
        found = _Exchange(self, label)
        for rank, array in receives:
            found.receive(rank, array)
        for rank, array in sends:
            found.send(rank, array)
        return found

    def wait(self, exchange):
        """Returns when all of it has come and gone."""
        poll(lambda: self._progress() or exchange.done, self.link.limit_s, lambda: self.missing(exchange.peers(), exchange.label),
             lambda: self._look(exchange))
        exchange.finish()

    def _look(self, exchange):
        """Raise what is wrong elsewhere: on this node, or with a rank of another."""
        heap, link = getattr(self.link, "node_heap", None), self.link
        if heap is not None:
            heap.check()
        try:
            link.peers.check([link.members[rank] for rank in exchange.peers()], bool(link.limit_s))
        except WorldError as error:
            rank = error.failed_rank
            where = self.layout.say([link.members.index(rank)]) if rank in link.members else f"rank {rank} of the whole world"
            raise WorldError(f"World: {str(error).removeprefix('World: ')} That is {where}. Nothing comes from there any more. Look at "
                             "that node, and make a new world.", failed_rank=rank, nodes=[where]) from None

    def _progress(self):
        """Let every exchange take its next steps."""
        for exchange in self.running:
            exchange.step()
        self.running = [e for e in self.running if not e.done]

    def abandon(self):
        """Forget what is in flight. MPI may still write to its memory, which therefore stays."""
        _LEFT.extend(self.running)
        self.running = []


class _Exchange:
    """Messages under way, all at once."""

    def __init__(self, engine, label):
        self.engine, self.comm, self.label, self.requests = engine, engine.link.comm, label, []
        self.tag = zlib.crc32(label.encode()) % engine.bound

    @property
    def done(self):
        """Whether nothing is left to do on the host."""
        return not self.requests

    def receive(self, rank, memory):
        """Expect a message. memory: anything with a buffer."""
        return self._keep(rank, lambda: self.comm.Irecv([_bytes(memory), self.engine.link.mpi.BYTE], rank, self.tag))

    def send(self, rank, memory):
        """Send a message."""
        return self._keep(rank, lambda: self.comm.Isend([_bytes(memory), self.engine.link.mpi.BYTE], rank, self.tag))

    def _keep(self, rank, begin):
        self.requests.append((rank, self._ask(rank, begin)))
        return self.requests[-1][1]

    def _ask(self, rank, question):
        try:
            return question()
        except self.engine.link.mpi.Exception as why:
            raise self.engine.gone([rank], self.label, why) from None

    def step(self):
        """Look which requests have been completed."""
        self.requests = [(rank, request) for rank, request in self.requests if not self._ask(rank, request.Test)]

    def peers(self):
        """Whom it still waits for."""
        return sorted({rank for rank, _ in self.requests})

    def finish(self):
        """What remains once it is done."""


def _bytes(memory):
    return memory.reshape(-1).view("uint8") if hasattr(memory, "reshape") else memory


def is_cuda_aware(mpi):
    """Whether the MPI library says that it sends and receives device memory."""
    import ctypes
    try:
        library = ctypes.CDLL(mpi.__file__)      # the extension module: what it is linked with is searched too
    except (OSError, TypeError):
        return False
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support()) or _through_ucx(os.environ, "/proc/self/maps")
    if hasattr(library, "MPIX_GPU_query_support"):                  # MPICH: (kind, result), kind 0 is CUDA
        found = ctypes.c_int()
        return library.MPIX_GPU_query_support(0, ctypes.byref(found)) == 0 and bool(found.value)
    return False


def _through_ucx(environment, maps):
    """Whether Open MPI was told to hand all messages to UCX (``OMPI_MCA_pml=ucx``) and UCX has loaded its CUDA transports: it then takes
    device memory, also through an Open MPI that was built without CUDA and says no."""
    if environment.get("OMPI_MCA_pml") != "ucx":
        return False
    with open(maps) as found:
        return "/libuct_cuda." in found.read()


class CudaAware(HostEngine):
    """Device memory goes to MPI as it is, once the stream has come to it."""

    name = "cuda-mpi"

    def __init__(self, link, layout, here):
        if not is_cuda_aware(link.mpi):
            raise UnsupportedError("World: engine cuda-mpi. This MPI library says that it does not take device memory. Use another build "
                                   "of it, UCX with CUDA (docs/deployment.md), or engine mpi, which stages through host memory.")
        super().__init__(link, layout, here)

    def _exchange(self, sends, receives, label, stream):
        return _Direct(self, sends, receives, label, stream)


class _Direct(_Exchange):
    def __init__(self, engine, sends, receives, label, stream):
        super().__init__(engine, label)
        self.work, self.event = (sends, receives), Event(engine.here.device).record(stream)

    @property
    def done(self):
        return self.work is None and not self.requests

    def step(self):
        with driver.using(self.engine.here.device):                     # MPI copies in the context that it finds
            if self.work is not None and self.event.done():
                (sends, receives), self.work = self.work, None
                view = self.engine.link.mpi.buffer.fromaddress
                for rank, array in receives:
                    self.receive(rank, view(array.pointer, array.nbytes))
                for rank, array in sends:
                    self.send(rank, view(array.pointer, array.nbytes))
            super().step()

    def peers(self):
        return super().peers() or sorted({rank for rank, _ in self.work[1]})


class Staged(HostEngine):
    """Device memory goes through pinned host memory, piece by piece: one is copied while another is sent."""

    def __init__(self, link, layout, here):
        super().__init__(link, layout, here)
        self.stream, self.free = None, {}

    def _exchange(self, sends, receives, label, stream):
        if self.stream is None:
            with driver.using(self.here.device):
                self.stream = driver.stream_create()
        return _StagedExchange(self, sends, receives, label, stream)

    def pinned(self, nbytes):
        """(capacity, host address, buffer) of pinned memory for at least so many bytes."""
        capacity = 1 << max(nbytes - 1, 4095).bit_length()
        if self.free.get(capacity):
            return self.free[capacity].pop()
        with driver.using(self.here.device):
            host, _ = driver.alloc_host(capacity)
        return capacity, host, self.link.mpi.buffer.fromaddress(host, capacity)

    def give_back(self, block):
        """Pinned memory that is no longer used."""
        self.free.setdefault(block[0], []).append(block)

    def close(self):
        self.abandon()
        super().close()

    def abandon(self):
        super().abandon()
        if self.stream is not None:
            with driver.using(self.here.device):
                driver.stream_synchronize(self.stream)
                driver.stream_destroy(self.stream)
                for blocks in self.free.values():
                    for _, host, _ in blocks:
                        driver.free_host(host)
            self.stream, self.free = None, {}


class _StagedExchange(_Exchange):
    """All receives are posted at once, so that whoever sends can always finish; what comes is copied on as it comes."""

    def __init__(self, engine, sends, receives, label, stream):
        super().__init__(engine, label)
        self.target, self.blocks, device = stream, [], engine.here.device
        self.ready, self.copied = Event(device).record(stream), Event(device)
        with driver.using(device):
            self.ready.holds(engine.stream)      # what is copied was written before, and nobody reads any more what is overwritten
            self.coming = deque((self.receive(rank, part), pointer, host, n) for rank, part, pointer, host, n in self._pieces(receives))
            self.going = deque()
            for rank, part, pointer, host, n in self._pieces(sends):
                driver.copy(host, pointer, n, engine.stream)
                self.going.append((Event(device).record(engine.stream), rank, part))

    def _pieces(self, items):
        """(rank, host buffer, device address, host address, bytes) of every piece; peers take turns."""
        rows = []
        for rank, array in items:
            block = self.engine.pinned(array.nbytes)
            self.blocks.append(block)
            starts = range(0, array.nbytes, PIECE)
            rows += [(at, i, rank, block[2][at:min(at + PIECE, array.nbytes)], array.pointer + at, block[1] + at)
                     for i, at in zip([len(rows)] * len(starts), starts)]
        return [(rank, part, pointer, host, len(part)) for _, _, rank, part, pointer, host in sorted(rows, key=lambda row: row[:2])]

    @property
    def done(self):
        return not (self.coming or self.going or self.requests)

    def step(self):
        while self.going and self.going[0][0].done():
            _, rank, part = self.going.popleft()
            self.send(rank, part)
        super().step()
        open_requests = {id(request) for _, request in self.requests}
        arrived = [item for item in self.coming if id(item[0]) not in open_requests]
        if arrived:
            self.coming = deque(item for item in self.coming if id(item[0]) in open_requests)
            with driver.using(self.engine.here.device):
                for _, pointer, host, n in arrived:
                    driver.copy(pointer, host, n, self.engine.stream)

    def peers(self):
        return super().peers() or sorted({rank for _, rank, _ in self.going})

    def finish(self):
        with driver.using(self.engine.here.device):
            self.copied.record(self.engine.stream).holds(self.target)
        # Host memory may be used again once the copies from it have run; the stream keeps their order with later copies, but MPI does not.
        poll(self.copied.done, self.engine.link.limit_s, lambda: self.engine.missing([self.engine.link.rank], self.label))
        for block in self.blocks:
            self.engine.give_back(block)
        self.blocks = []
