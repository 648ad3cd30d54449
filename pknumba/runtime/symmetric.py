"""Arrays and counters of which every rank has one, and sees the others'."""

from math import prod

from . import device_array, dlpack, driver, dtypes
from ..errors import ShapeError, WorldError

__all__ = ["SymmetricArray", "SymmetricCounters"]


class _Symmetric:
    """Something with an allocation on every rank, closed once."""

    closed = False

    def close(self):
        """Give the memory back on all ranks (collective). Views of it end. A second call does nothing.

        A world that is closed or broken has given back what it could already.
        """
        if not self.closed:
            self.closed, self.mark = True, None
            self.world._release(self._block)

    def _alive(self):
        if self.closed or not self._block.open:
            raise WorldError(f"{self}: closed. Its memory is gone on every rank. Close it after the last use.")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # After an error on this rank the others may never come: leave the memory to the world.
        if kind is None:
            self.close()

    @property
    def peers_table(self):
        """Device address of uint64[size]: the address of every rank's memory (GPU)."""
        self._alive()
        return self._block.table


class SymmetricArray(_Symmetric):
    """An array of the same shape and dtype on every rank; made by ``world.symmetric``.

    Rows (the last dimension) start on 16-byte boundaries, so ``local`` may be a strided view. The contents are unspecified at
    first; the interpreter fills them with NaN.

    Attributes: ``shape``, ``dtype`` (a name), ``pitch`` (bytes from a row to the next), ``strides`` (bytes), ``device`` ("cpu" or
    a number), ``world``, ``closed``, ``number`` (how many its world had made with it: the same on every rank), ``mark`` (stands
    for this array where it must not be kept alive; None once it is closed).
    """

    def __init__(self, world, shape, dtype, number):
        self.shape, self.dtype, self.world, self.number, self.mark = tuple(shape), dtype, world, number, object()
        size, cols = dtypes.itemsize(dtype), self.shape[-1] if self.shape else 1
        self.pitch = -(-cols * size // 16) * 16 if len(self.shape) > 1 else cols * size
        strides = [size, self.pitch]
        for extent in reversed(self.shape[1:-1]):
            strides.append(strides[-1] * extent)
        self.strides = tuple(reversed(strides[:len(self.shape)]))
        self.device = "cpu" if world.executor == "interpreter" else world.device
        self._block = world._allocate(prod(self.shape[:-1]) * self.pitch, f"World.symmetric{self.shape}")
        self._views = {}
        if self._block.arrays is not None:
            time = world.session.time
            if time is not None:
                time.place(self._block.arrays)
            if time is None or time.values:
                _poison(self._block.arrays[world.rank], self._view(world.rank), dtype)
            world.barrier()

    @property
    def local(self):
        """This rank's array: CuPy (or DeviceArray without CuPy) on a GPU, NumPy on the interpreter."""
        return self.peer(self.world.rank)

    def peer(self, rank):
        """The array of `rank`, in its memory. Raises WorldError for a rank that the world does not have."""
        self._alive()
        if rank not in self._views:
            if not 0 <= rank < self.world.size:
                raise WorldError(f"{self}: peer({rank}). The world has ranks 0 to {self.world.size - 1}.")
            self._views[rank] = self._view(rank)
        return self._views[rank]

    def _view(self, rank):
        if self._block.arrays is None:
            return device_array.wrap(self._block.pointers[rank], self.shape, self.strides, self.dtype, self.device, self)
        import numpy
        return numpy.ndarray(self.shape, dtypes.numpy_dtype(self.dtype), self._block.arrays[rank], 0, self.strides)

    @property
    def arrays(self):
        """Every rank's array, in rank order."""
        return [self.peer(rank) for rank in range(self.world.size)]

    @property
    def pointer(self):
        """Address of this rank's first element."""
        self._alive()
        return self._block.pointers[self.world.rank] if self._block.pointers else self.local.ctypes.data

    @property
    def pointers(self):
        """Address of every rank's first element, as this rank sees it."""
        self._alive()
        return list(self._block.pointers) if self._block.pointers else [array.ctypes.data for array in self.arrays]

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return prod(self.shape)

    @property
    def __cuda_array_interface__(self):
        if self._block.arrays is not None:
            raise AttributeError("__cuda_array_interface__")  # so that hasattr says no
        return {"shape": self.shape, "typestr": dtypes.typestr(self.dtype), "data": (self.pointer, False), "version": 3,
                "strides": self.strides, "stream": None}

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self._block.arrays is not None and self.dtype != "bfloat16":       # which NumPy does not export
            asked = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
            return self.local.__dlpack__(**{k: v for k, v in asked.items() if v is not None})
        return dlpack.export(self, self.pointer, self.shape, self.strides, self.dtype, self.device)

    def __dlpack_device__(self):
        return (dlpack.CPU, 0) if self._block.arrays is not None else (dlpack.CUDA, self.device)

    def __repr__(self):
        return f"SymmetricArray({self.shape}, {self.dtype}{', closed' if self.closed else ''})"


class SymmetricCounters(_Symmetric):
    """`n` 32-bit counters on every rank, zero at first; made by ``world.counters``. They only grow."""

    def __init__(self, world, name, n):
        if n < 1:
            raise ShapeError(f"counters {name}: n = {n}. There is at least one.")
        self.name, self.n, self.world = name, n, world
        self._block = world._allocate_counters(n, f"World.counters({name}, {n})")

    @property
    def arrays(self):
        """Every rank's counters as NumPy uint32[n] (interpreter).

        Where ranks are processes they are uint32[n, size], with a slot for each rank that adds; a counter is its row's sum.
        """
        self._alive()
        if self._block.arrays is None:
            raise WorldError(f"{self}: they are in device memory. Use .values() to look at them.")
        return [array.view("uint32") for array in self._block.arrays]

    @property
    def pointer(self):
        """Device address of this rank's counters (GPU)."""
        self._alive()
        return self._block.pointers[self.world.rank]

    def values(self):
        """A copy of this rank's counters as NumPy uint32[n], once the device is idle."""
        import numpy
        self._alive()
        if self._block.arrays is not None:
            own = self.arrays[self.world.rank]
            return own.copy() if own.ndim == 1 else own.sum(1, dtype="uint32")
        with driver.using(self.world.device):
            driver.synchronize()
            return numpy.frombuffer(driver.copy_out(self.pointer, 4 * self.n), "uint32").copy()

    def __repr__(self):
        return f"SymmetricCounters({self.name}, {self.n}{', closed' if self.closed else ''})"


def _poison(block, array, dtype):
    """Make what was never written easy to see: NaN, or bytes 0x7f."""
    block[...] = 0x7f
    if dtype in ("bfloat16", "float16", "float32", "float64"):
        array[...] = float("nan")
