"""Arrays of one dimension on either executor: views, copies, workspaces that a world keeps, sums of several."""

from math import prod

from ..runtime import DeviceArray, describe
from ..tiles import ITEMSIZE
from .combine import combine

__all__ = ["Memory"]

#: Chunks of which each has workspaces of its own: as many as are under way at once (``schedule``).
DEPTH = 3


class Memory:
    """What an operator does with arrays, for one dtype and stream.

    Arrays are 1-D and without gaps: NumPy on the interpreter, DeviceArray on a GPU. Lengths and places are counted in elements.
    """

    def __init__(self, world, dtype, stream):
        self.world, self.dtype, self.stream, self.size = world, dtype, stream, ITEMSIZE[dtype]
        self.gpu = world.executor == "gpu"
        #: What the node's operators are given as stream.
        self.given = stream if self.gpu else None

    def of(self, x):
        """All elements of an array without gaps."""
        info = describe(x)
        return info.owner.reshape(-1) if not self.gpu else self._at(info.pointer, prod(info.shape), x)

    def _at(self, pointer, n, owner):
        return DeviceArray(pointer, (n,), self.dtype, self.world.device, owner=owner)

    def matrix(self, info, first, end):
        """Rows first .. end of the array that an ArrayInfo describes, strides as they are."""
        if not self.gpu:
            return info.owner[first:end]
        shape = (end - first, *info.shape[1:])
        return DeviceArray(info.pointer + first * info.strides[0], shape, self.dtype, self.world.device, info.strides, info.owner)

    def part(self, array, first, end):
        """A view of some elements."""
        if not self.gpu:
            return array[first:end]
        return self._at(array.pointer + first * self.size, end - first, array)

    def shaped(self, array, shape):
        """A view of another shape."""
        return array.reshape(shape) if not self.gpu else DeviceArray(array.pointer, shape, self.dtype, self.world.device, owner=array)

    def room(self, name, n, chunk=0):
        """A workspace of n elements for one purpose, kept by the world."""
        capacity = 1 << max(n - 1, 15).bit_length()
        key = "room", name, self.dtype, capacity, self.stream, chunk % DEPTH
        if key not in self.world.cache:
            if self.gpu:
                self.world.cache[key] = DeviceArray.empty((capacity,), self.dtype, self.world.device)
            else:
                import numpy
                from ..runtime.dtypes import numpy_dtype
                self.world.cache[key] = numpy.empty(capacity, numpy_dtype(self.dtype))
        return self.part(self.world.cache[key], 0, n)

    def copy(self, target, source):
        """Copy as many elements as ``source`` has, unless both are the same memory."""
        self.copy_rows(target, source.size, source, source.size, 1, source.size)

    def copy_rows(self, target, target_pitch, source, source_pitch, rows, width):
        """Copy ``rows`` pieces of ``width`` elements, ``pitch`` elements apart."""
        if not rows or not width:
            return
        if self.gpu:
            if target.pointer != source.pointer:
                from ..runtime import driver
                with driver.using(self.world.device):
                    driver.copy_2d(target.pointer, target_pitch * self.size, source.pointer, source_pitch * self.size, width * self.size,
                                   rows, self.stream)
            return
        from numpy.lib.stride_tricks import as_strided
        if target.ctypes.data != source.ctypes.data:
            as_strided(target, (rows, width), (target_pitch * self.size, self.size))[...] = as_strided(
                source, (rows, width), (source_pitch * self.size, self.size))

    def clear(self, array):
        """Zeros."""
        if self.gpu:
            from ..runtime import driver
            with driver.using(self.world.device):
                driver.memset(array.pointer, 0, array.nbytes, self.stream)
        else:
            array[...] = 0

    def combine(self, target, terms, op):
        """target = the terms combined in float32 in that order, rounded once; it may be one of them."""
        if target.size:
            combine(self, target, terms, op)
