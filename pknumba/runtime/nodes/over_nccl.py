"""The engine of NVIDIA's library: device memory to device memory, in the order of streams."""

import re
import time
from collections import deque

from .engine import Engine, poll
from .events import Event
from .. import driver
from ..device_array import DeviceArray
from ...errors import UnsupportedError

__all__ = ["NcclEngine", "importable"]

#: ncclResult_t.
_SUCCESS, _IN_PROGRESS = 0, 7


def importable():
    """(whether nccl4py and libnccl can be used, why not or which version)."""
    try:
        import nccl.core
        found = nccl.core.get_version()
    except ModuleNotFoundError:
        return False, "nccl4py is not installed: pip install 'nccl4py[cu13]'"
    except Exception as why:  # a package of another version
        return False, f"{type(why).__name__}: {why}"
    if found.libnccl is None:
        return False, f"nccl4py {found.nccl4py} finds no libnccl: pip install nvidia-nccl-cu13"
    version = re.match(r"[\d.]*", str(found.libnccl))[0] or found.libnccl          # what follows says where it lies
    return True, f"NCCL {version}, nccl4py {found.nccl4py}"


class NcclEngine(Engine):
    """Sends and receives of one exchange are one group, on a stream of its own."""

    name = "nccl"
    asynchronous = True

    def __init__(self, link, layout, here):
        ok, why = importable()
        if not ok:
            raise UnsupportedError(f"World: engine nccl. It needs nccl4py and NCCL ({why}). pip install 'pknumba[nccl]', or use "
                                   "engine mpi.")
        super().__init__(link, layout, here)
        import nccl.core
        self.core = nccl.core
        said = link.allgather(here.info.uuid, "World.mpi")
        if len(set(said)) < len(said):
            raise UnsupportedError("World: engine nccl. NCCL gives every rank a GPU of its own, and ranks share one here. Use engine mpi.")
        token = link.allgather(bytes(nccl.core.get_unique_id()) if link.rank == 0 else None, "World.mpi")[0]
        self.running = deque()
        with driver.using(here.device):
            self.stream = driver.stream_create()
            self.comm = self._communicator(nccl.core.UniqueId.from_bytes(token))

    def _communicator(self, token):
        """A communicator that never blocks the host, once all ranks have come to it."""
        comm = self.core.Communicator.init(self.link.size, self.link.rank, token, config=self.core.NCCLConfig(blocking=False))
        everyone = [r for r in range(self.link.size) if r != self.link.rank]
        poll(lambda: self._state(comm) != _IN_PROGRESS, self.link.limit_s, lambda: self.missing(everyone, "World.mpi"))
        if self._state(comm) != _SUCCESS:
            raise self.gone(everyone, "World.mpi", comm.get_last_error())
        return comm

    @staticmethod
    def _state(comm):
        """The ncclResult_t of what goes on."""
        return int(comm.get_async_error())

    def _start(self, sends, receives, label, stream):
        device = self.here.device
        with driver.using(device):
            Event(device).record(stream).holds(self.stream)
            self.core.group_start()
            for rank, array in receives:
                self.comm.recv(self._bytes(array), rank, stream=self.stream)
            for rank, array in sends:
                self.comm.send(self._bytes(array), rank, stream=self.stream)
            self.core.group_end()
            peers = sorted({rank for rank, _ in sends + receives})
            poll(lambda: self._state(self.comm) != _IN_PROGRESS, self.link.limit_s, lambda: self.missing(peers, label))
            done = Event(device).record(self.stream)
        self.running.append((done, peers, label, time.monotonic()))
        return done, stream

    @staticmethod
    def _bytes(array):
        return DeviceArray(array.pointer, (array.nbytes,), "uint8", array.device, owner=array)

    def wait(self, exchange):
        """Orders the stream; the host does not wait."""
        done, stream = exchange
        with driver.using(self.here.device):
            done.holds(stream)
        self.check()

    def check(self):
        while self.running and self.running[0][0].done():
            self.running.popleft()
        if not self.running:
            return
        _, peers, label, since = self.running[0]
        state = self._state(self.comm)
        if state not in (_SUCCESS, _IN_PROGRESS):
            error = self.gone(peers, label, f"NCCL says {state}: {self.comm.get_last_error()}")
        elif self.link.limit_s and time.monotonic() - since > self.link.limit_s:
            error = self.missing(peers, label)
        else:
            return
        self.abandon()
        raise error

    def close(self):
        if self.comm is not None:
            with driver.using(self.here.device):
                driver.stream_synchronize(self.stream)
                self.comm.destroy()
                driver.stream_destroy(self.stream)
            self.comm = None
        super().close()

    def abandon(self):
        if self.comm is not None:
            self.comm.abort()                    # ends what is in flight, so that streams which wait for it go on
            self.comm = None
        self.running.clear()
