"""An array in device memory with nothing but what a kernel and a test need; used where CuPy is missing."""

import threading
import weakref
from functools import partial
from math import prod

from . import dlpack, driver, dtypes, later
from ..errors import LayoutError, PknumbaError, ShapeError, WorldError

__all__ = ["DeviceArray", "cupy_module", "use_stream", "wrap"]

#: ``stream``: the stream that this thread's arrays are read and written on.
_here = threading.local()


def use_stream(pointer):
    """Make a stream the one that this thread's arrays are read and written on; the legacy default stream before."""
    _here.stream = pointer


class DeviceArray:
    """Device memory with a shape.

    It has ``__cuda_array_interface__`` (bfloat16 shows there as ``<u2``, since the interface has no code for it: a view of
    the bits that CuPy and torch accept) and ``__dlpack__`` (bfloat16 as itself: ``torch.from_dlpack(x)``).

    Attributes: ``pointer``, ``shape``, ``strides`` (bytes), ``dtype`` (a name), ``device`` (number), ``nbytes``.
    """

    def __init__(self, pointer, shape, dtype, device, strides=None, owner=None):
        self.pointer, self.shape, self.dtype, self.device = pointer, tuple(shape), dtype, device
        self.strides = tuple(strides) if strides is not None else dlpack._contiguous(self.shape, dtypes.itemsize(dtype))
        self.owner = owner

    @classmethod
    def empty(cls, shape, dtype="float32", device=None):
        """New uninitialised memory, freed with the array. `device`: number; None: the current one."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        device = (driver.current_device() or 0) if device is None else device
        place = device, getattr(_here, "stream", 0), prod(shape) * dtypes.itemsize(dtype)
        with driver.using(device):
            pointer = later.take(place) or driver.alloc(place[2])
        array = cls(pointer, shape, dtype, device)
        weakref.finalize(array, later.keep, place, pointer, partial(_free_now, device=device)).atexit = False
        return array

    @classmethod
    def of(cls, x, device=None):
        """A copy of a NumPy array."""
        array = cls.empty(x.shape, x.dtype.name, device)
        return array.set(x)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return prod(self.shape)

    @property
    def nbytes(self):
        return self.size * dtypes.itemsize(self.dtype)

    def _rows(self):
        """(rows, bytes of a row, pitch): the array as rows of contiguous bytes."""
        itemsize = dtypes.itemsize(self.dtype)
        row = (self.shape[-1] if self.shape else 1) * itemsize
        rows = prod(self.shape[:-1])
        pitch = self.strides[-2] if self.ndim > 1 else row
        wanted = [itemsize]
        for extent in reversed(self.shape[1:]):
            wanted.append(pitch if len(wanted) == 1 else wanted[-1] * extent)
        if self.size and self.ndim and self.strides != tuple(reversed(wanted[:self.ndim])):
            raise LayoutError(f"DeviceArray: strides {self.strides}. It copies rows of contiguous elements at one pitch. Use "
                              "CuPy or torch for other layouts.")
        return rows, row, pitch

    def get(self, stream=None):
        """The contents as a NumPy array, once what is in `stream` (None: that of this thread's rank) has run."""
        import numpy
        rows, row, pitch = self._rows()
        target = numpy.empty(self.shape, dtypes.numpy_dtype(self.dtype))
        self._check()
        stream = getattr(_here, "stream", 0) if stream is None else stream
        with driver.using(self.device):
            if target.nbytes:
                driver.copy_2d(target.ctypes.data, row, self.pointer, pitch, row, rows, stream, "target")
            driver.stream_synchronize(stream)
        return target

    def set(self, values, stream=None):
        """Copy `values` (anything NumPy takes; converted to this dtype) here, in the order of `stream` as in ``get``, and return self.
        Raises ShapeError."""
        import numpy
        rows, row, pitch = self._rows()
        source = numpy.asarray(values, dtypes.numpy_dtype(self.dtype))
        if source.shape != self.shape and source.ndim:
            raise ShapeError(f"DeviceArray.set: shape {source.shape} into {self.shape}. They must be equal, or the value a "
                             "scalar.")
        source = numpy.asarray(numpy.broadcast_to(source, self.shape), order="C")
        self._check()
        stream = getattr(_here, "stream", 0) if stream is None else stream
        with driver.using(self.device):
            if source.nbytes:
                driver.copy_2d(self.pointer, pitch, source.ctypes.data, row, row, rows, stream, "source")
            driver.stream_synchronize(stream)
        return self

    def fill(self, value):
        """Set every element to `value`."""
        return self.set(value)

    def _check(self):
        if getattr(self.owner, "closed", False):
            raise WorldError("DeviceArray: its symmetric array is closed. Views end with it.")

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": dtypes.typestr(self.dtype), "data": (self.pointer, False), "version": 3,
                "strides": self.strides, "stream": None}

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return dlpack.export(self, self.pointer, self.shape, self.strides, self.dtype, self.device)

    def __dlpack_device__(self):
        return dlpack.CUDA, self.device

    def __repr__(self):
        return f"DeviceArray({self.shape}, {self.dtype}, device {self.device})"


def _free(pointer, device):
    """What finalisers do."""
    later.soon(_free_now, pointer, device)


def _free_now(pointer, device):
    """A lost context has lost the memory too."""
    try:
        with driver.using(device):
            driver.free(pointer)
    except PknumbaError:
        pass


_cupy = []


def cupy_module():
    """CuPy, or None where it is not installed or does not work."""
    if not _cupy:
        try:
            import cupy
        except Exception:  # a broken installation raises what it likes
            cupy = None
        _cupy.append(cupy)
    return _cupy[0]


def wrap(pointer, shape, strides, dtype, device, owner):
    """Device memory as a CuPy array; as a :class:`DeviceArray` where CuPy is missing or does not know the dtype."""
    cupy = cupy_module()
    if cupy is not None:
        try:
            extent = sum((n - 1) * s for n, s in zip(shape, strides)) + dtypes.itemsize(dtype) if prod(shape) else 0
            memory = cupy.cuda.UnownedMemory(pointer, max(extent, 1), owner, device)
            return cupy.ndarray(shape, dtypes.numpy_dtype(dtype), cupy.cuda.MemoryPointer(memory, 0), strides)
        except (TypeError, ValueError, KeyError):
            pass  # a CuPy that does not know bfloat16
    return DeviceArray(pointer, shape, dtype, device, strides, owner)
