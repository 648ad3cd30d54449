"""Memory of the same size on every rank, visible to all: how it is made and given back.

``allocate`` and ``release`` are collective. ``abandon`` is what a finaliser may do: it gives back what no peer can be using.
A kind of memory knows where its ranks live: NumPy arrays in one process or in an MPI shared heap; device memory in one process
or in several.
"""

from . import driver, guards
from ..errors import PknumbaError

__all__ = ["Allocation", "HostMemory", "HeapMemory", "LocalDeviceMemory", "IpcDeviceMemory"]


class Allocation:
    """`nbytes` on every rank.

    Attributes: ``arrays`` (uint8 NumPy arrays, one for each rank) or ``pointers`` (device addresses), None otherwise;
    ``table``: device address of uint64[size] with these pointers.
    """

    arrays = pointers = guard = None
    table = 0
    open = True

    def __init__(self, memory, nbytes):
        self.memory, self.nbytes = memory, nbytes

    def touched(self):
        """In a debug build: offset of the first byte behind this rank's memory that was written, or None."""
        return guards.changed(self.pointers[self.memory.link.rank] + self.guard) if self.open and self.guard is not None else None

    def release(self):
        """Give the memory back, together with the other ranks. A second call does nothing."""
        if self.open:
            self.open = False
            self.memory.release(self)

    def abandon(self, alone=False):
        """Give back what this rank may give back by itself; all of it if it is `alone`, that is, no other rank lives.

        Returns the bytes that stay allocated because a peer may be using them.
        """
        if not self.open:
            return 0
        self.open = False
        return self.memory.abandon(self, alone)


class HostMemory:
    """NumPy arrays that the ranks of one process show each other (interpreter)."""

    def __init__(self, link):
        self.link = link

    def allocate(self, nbytes, call):
        """`nbytes` zero bytes on every rank."""
        import numpy
        block = Allocation(self, nbytes)
        block.arrays = self.link.allgather(numpy.zeros(nbytes, numpy.uint8), call)
        return block

    def counters(self, n, call):
        """`n` zero 32-bit counters on every rank."""
        return self.allocate(4 * n, call)

    def release(self, block):
        self.link.barrier("close")
        block.arrays = None

    def abandon(self, block, alone):
        block.arrays = None
        return 0


class HeapMemory(HostMemory):
    """NumPy arrays in memory that the MPI processes of a node share (interpreter)."""

    def __init__(self, link, heap):
        self.link, self.heap = link, heap

    def allocate(self, nbytes, call):
        """`nbytes` zero bytes on every rank."""
        block = Allocation(self, nbytes)
        self.link.barrier(call)
        block.arrays = list(self.heap.array((nbytes,), "uint8"))
        block.arrays[self.link.rank][...] = 0
        self.link.barrier(call)
        return block

    def counters(self, n, call):
        """`n` counters with a slot for each rank that adds, because processes have no atomic additions: uint32[n, size]."""
        block = Allocation(self, 4 * n * self.link.size)
        self.link.barrier(call)
        block.arrays = list(self.heap.counters(n))
        block.arrays[self.link.rank][...] = 0
        self.link.barrier(call)
        return block


class LocalDeviceMemory:
    """Device memory of ranks in one process: peers are plain pointers."""

    def __init__(self, link, device):
        self.link, self.device, self.reached = link, device, {device}

    def allocate(self, nbytes, call, zero=False):
        """`nbytes` (zeroed on request) and the table of all ranks' addresses. Every rank fails if one does."""
        block = Allocation(self, nbytes)
        block.guard = -(-nbytes // 256) * 256 if guards.debug() else None
        table_at = -(-nbytes // 256) * 256 + (guards.GUARD if guards.debug() else 0)
        with driver.using(self.device):
            own = self._own(table_at + 8 * self.link.size, nbytes if zero else 0, call)
            said = self.link.allgather(self._offer(own), call)
            self._agree(own, said, call)
            problem = None
            try:
                block.pointers = [own if rank == self.link.rank else self._map(offer) for rank, offer in enumerate(said)]
                block.table = own + table_at
                if block.guard is not None:
                    guards.lay(own + block.guard)
                driver.copy_in(block.table, b"".join(p.to_bytes(8, "little") for p in block.pointers))
            except PknumbaError as error:
                problem = error
            self._agree(own, self.link.allgather(problem, call), call)
        return block

    def counters(self, n, call):
        """`n` zero 32-bit counters on every rank."""
        return self.allocate(4 * n, call, zero=True)

    def _own(self, nbytes, zero, call):
        try:
            own = driver.alloc(nbytes, about=call)
            driver.memset(own, 0, zero)
            driver.stream_synchronize(0)  # peers may write as soon as they know the address
            return own
        except PknumbaError as error:
            return error

    def _agree(self, own, said, call):
        failed = {rank: error for rank, error in enumerate(said) if isinstance(error, PknumbaError)}
        if failed:
            if not isinstance(own, PknumbaError):
                driver.free(own)
            rank, error = next(iter(failed.items()))
            raise type(error)(f"{call} on rank {rank}: {error}", **{**error.data, "ranks": tuple(failed)})

    def _offer(self, own):
        return own if isinstance(own, PknumbaError) else (own, self.device)

    def _map(self, offer):
        pointer, device = offer
        if device not in self.reached:
            driver.enable_peer_access(self.device, device)
            self.reached.add(device)
        return pointer

    def _unmap(self, pointer):
        pass

    def _unmap_all(self, block):
        for rank, pointer in enumerate(block.pointers):
            if rank != self.link.rank:
                self._unmap(pointer)

    def release(self, block):
        with driver.using(self.device):
            driver.synchronize()        # our kernels no longer touch any peer
            self._unmap_all(block)
            self.link.barrier("close")  # nobody's kernels touch ours
            driver.free(block.pointers[self.link.rank])
            self._all_free()

    def _all_free(self):
        """Freeing waits for all kernels of a device: no rank of this process launches one that waits for others before they are through."""
        self.link.barrier("close")

    def abandon(self, block, alone):
        alone = alone or self.link.size == 1
        try:
            with driver.using(self.device):
                self._unmap_all(block)
                if alone:
                    driver.free(block.pointers[self.link.rank])
        except PknumbaError:
            return 0  # the context is lost, and the memory with it
        return 0 if alone else block.nbytes


class IpcDeviceMemory(LocalDeviceMemory):
    """Device memory of ranks in several processes, mapped by CUDA IPC."""

    def _own(self, nbytes, zero, call):
        # Whole pages: the mapping shares pages, and a second allocation in the same page could not be mapped beside it.
        return super()._own(-(-nbytes // driver.IPC_GRANULARITY) * driver.IPC_GRANULARITY, zero, call)

    def _offer(self, own):
        if isinstance(own, PknumbaError) or self.link.size == 1:
            return own
        try:
            return driver.ipc_export(own)
        except PknumbaError as error:
            return error

    def _map(self, offer):
        return driver.ipc_open(offer)

    def _unmap(self, pointer):
        driver.ipc_close(pointer)

    def _all_free(self):
        """Nothing: a process's kernels are its own."""
