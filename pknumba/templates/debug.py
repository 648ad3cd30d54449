"""What a debug build (PKNUMBA_DEBUG=1) does around a call on a GPU.

A result is made in memory of its own, every element NaN at first, with guard bytes around it and between its rows. After the kernel
the host waits, and raises ProtocolError for the first violation that the kernel found (``lowering.insist``), for bytes that were
written beside the result or behind symmetric memory, and for elements that nobody has written. Not for calls that are captured in
graphs.
"""

import numpy as np

from ..errors import ProtocolError
from ..runtime import DeviceArray, arrays, driver, guards
from ..tiles import ITEMSIZE
from .call import Matrix

__all__ = ["guarded", "watched", "poisoned", "looked_at"]

_PIECE = 16         # bytes that the copy engine writes at once: rows own their last one


class _Watch:
    """Steps before and after a call. image: the bytes of the memory before it, as the host sees them."""

    def __init__(self, call, rows, width, pitch, dtype):
        self.call, self.rows, self.width, self.pitch, self.size = call, rows, width, pitch, ITEMSIZE[dtype]

    def finish(self, stream):
        """The kernel has run, and has found nothing; nothing behind symmetric memory was touched."""
        world = self.call.world
        driver.stream_synchronize(stream)
        world.check()
        for block in list(world._blocks.values()):
            at = block.touched()
            if at is not None:
                self.fail(f"byte {at} behind a symmetric array of {block.nbytes} bytes was written")

    def look(self, data):
        """Raise for elements that are still as they were before the call. data: rows of bytes."""
        bits = np.ascontiguousarray(data[:, :self.width]).view(f"u{self.size}")
        missing = np.argwhere(bits == np.iinfo(bits.dtype).max)
        if len(missing):
            self.fail(f"{len(missing)} elements of the result were never written, the first at {missing[0].tolist()}")

    def fail(self, what):
        self.call.world._break(what)
        raise ProtocolError(f"{self.call.name}: {what}. A kernel writes every element of its result, and nothing else. Look at its "
                            "coordinates, its tails and the number of its tasks.")


class _Result(_Watch):
    """Memory for a result, with guards."""

    def __init__(self, call, rows, width, dtype):
        padded = -(-width // _PIECE) * _PIECE
        super().__init__(call, rows, width, padded + 2 * _PIECE, dtype)
        image = np.full(rows * self.pitch + 2 * guards.GUARD, guards.PATTERN, np.uint8)
        self.inside(image)[:, :padded] = guards.UNWRITTEN
        self.padded, self.image = padded, image
        self.fresh, self.memory = (DeviceArray.of(image.view(np.uint32), call.world.device) for _ in range(2))
        self.pointer = self.memory.pointer + guards.GUARD

    def inside(self, image):
        return image[guards.GUARD:guards.GUARD + self.rows * self.pitch].reshape(self.rows, self.pitch)

    def before(self, stream):
        n = self.image.nbytes
        driver.copy_2d(self.memory.pointer, n, self.fresh.pointer, n, n, 1, stream)

    def after(self, stream):
        self.finish(stream)
        data = np.frombuffer(driver.copy_out(self.memory.pointer, self.image.nbytes), np.uint8)
        beside = self.image == guards.PATTERN
        wrong = np.flatnonzero((data != self.image) & beside)
        if len(wrong):
            row, byte = divmod(int(wrong[0]) - guards.GUARD, self.pitch)
            self.fail(f"{len(wrong)} bytes beside the result were written, the first {byte} bytes from the start of row {row}, which has "
                      f"{self.width}")
        self.look(self.inside(data))


class _Shared(_Watch):
    """A result that lies in symmetric memory, and that this rank alone writes before it signals."""

    def __init__(self, call, matrix):
        super().__init__(call, matrix.rows, matrix.cols * ITEMSIZE[matrix.dtype], matrix.pitch, matrix.dtype)
        self.pointer = matrix.pointer

    def before(self, stream):
        driver.memset(self.pointer, guards.UNWRITTEN, self.rows * self.pitch, stream)

    def after(self, stream):
        self.finish(stream)
        data = np.frombuffer(driver.copy_out(self.pointer, self.rows * self.pitch), np.uint8)
        self.look(data.reshape(self.rows, self.pitch))


def guarded(call, c):
    """The Matrix that a kernel writes instead of c (ArrayInfo, rows contiguous), to which it is copied when all is well."""
    (rows, cols), width = c.shape, c.shape[1] * ITEMSIZE[c.dtype]
    made = _Result(call, rows, width, c.dtype)
    call.before.append(made.before)
    call.after += [made.after, lambda s: driver.copy_2d(c.pointer, c.strides[0], made.pointer, made.pitch, width, rows, s)]
    return Matrix(made.pointer, rows, cols, made.pitch, c.dtype)


def watched(call, matrix):
    """Look at symmetric memory that holds the whole result."""
    made = _Shared(call, matrix)
    call.before.insert(0, made.before)
    call.after.insert(0, made.after)


def poisoned(call, info):
    """NaN before and looked at after: a result in memory of the caller's, where nothing lies between its elements."""
    nbytes = ITEMSIZE[info.dtype] * int(np.prod(info.shape))
    if nbytes == ITEMSIZE[info.dtype] + sum((n - 1) * step for n, step in zip(info.shape, info.strides)):
        made = _Shared(call, Matrix(info.pointer, 1, nbytes // ITEMSIZE[info.dtype], nbytes, info.dtype))
        call.before.insert(0, made.before)
        call.after.append(made.after)


def looked_at(call, stream, result):
    """Launch a collective; a result that it brings into being is made between guards, and copied when all is well."""
    info = None if result is None or not call.launch.results else arrays.describe(result, "out")
    if info is None or info.dtype == "int32":                   # every int32 is a value
        call.launch.fire(stream, result)
        return _Watch(call, 1, 0, 0, call.dtype).finish(stream)
    nbytes = ITEMSIZE[info.dtype] * int(np.prod(info.shape))
    made = _Result(call, 1, nbytes, info.dtype)
    made.before(stream)
    call.launch.fire(stream, DeviceArray(made.pointer, info.shape, info.dtype, info.device))
    made.after(stream)
    return driver.copy_2d(info.pointer, nbytes, made.pointer, nbytes, nbytes, 1, stream)
