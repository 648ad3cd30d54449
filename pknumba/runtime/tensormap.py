"""Tensor maps: how the bulk copy engine finds boxes of a matrix in global memory."""

import ctypes
import threading

from . import libcuda
from ..errors import DTypeError, LayoutError
from ..tiles import ITEMSIZE

__all__ = ["encode", "problem", "NBYTES"]

#: Bytes of a tensor map.
NBYTES = 128

_DTYPES = {"uint32": 2, "int32": 3, "float16": 6, "float32": 7, "bfloat16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_256B, _ZERO_FILL = 3, 0  # promotion to 256 bytes in L2; out of bounds reads as zero

_lock = threading.Lock()
_memory = {}


def problem(pointer, shape, pitch_bytes, dtype):
    """Why the bulk copy engine cannot address such a matrix, as the middle of an error message; None if it can."""
    rows, cols = shape
    if rows < 1 or cols < 1:
        return f"its shape is {rows} x {cols}. The bulk copy engine needs at least one element."
    if rows >= 1 << 32 or cols >= 1 << 32:
        return f"its shape is {rows} x {cols}. The bulk copy engine counts up to 2**32 - 1 rows and columns."
    if pointer % 16:
        return f"its address is {pointer % 16} bytes past a multiple of 16. The bulk copy engine needs 16-byte alignment."
    if pitch_bytes % 16:
        return f"its rows are {pitch_bytes} bytes apart. The bulk copy engine needs a multiple of 16 bytes."
    if not cols * ITEMSIZE[dtype] <= pitch_bytes < 1 << 40:
        return f"its rows of {cols * ITEMSIZE[dtype]} bytes are {pitch_bytes} bytes apart. They must not overlap or be broadcast."
    return None


def encode(pointer, shape, pitch_bytes, dtype, box, swizzle=128, name="tensor", outer=()):
    """The 128 bytes of a tensor map (pass them to a kernel at a 128-byte boundary, or copy them there).

    Args:
        pointer: address of element (0, 0); a multiple of 16.
        shape: (rows, columns).
        pitch_bytes: bytes from a row to the next; a multiple of 16.
        dtype: one of ``tiles.ITEMSIZE``.
        box: (rows, columns) that one copy moves: at most 256 each, and columns * itemsize at most `swizzle` bytes.
        swizzle: 0 (none), 32, 64 or 128 bytes.
        name: of the array, for messages.
        outer: ((extent, bytes from one to the next), ...) of up to three more dimensions, the nearest first: an array of matrices,
            of which a copy moves a box of one.

    Copies beyond the edge read zero and write nothing. Raises DTypeError, LayoutError, DriverError, UnsupportedError.
    """
    if dtype not in _DTYPES:
        raise DTypeError(f"{name}: the bulk copy engine does not move {dtype}. It moves {', '.join(_DTYPES)}.")
    why = problem(pointer, shape, pitch_bytes, dtype) or _box_problem(box, swizzle, ITEMSIZE[dtype]) or _outer_problem(outer)
    if why:
        raise LayoutError(f"{name}: {why}")
    u64, u32, rank = ctypes.c_uint64, ctypes.c_uint32, 2 + len(outer)
    ones = [1] * len(outer)
    with _lock:
        target = _target()
        libcuda.call("cuTensorMapEncodeTiled", target, _DTYPES[dtype], rank, pointer,
                     (u64 * rank)(shape[1], shape[0], *(n for n, _ in outer)),
                     (u64 * (rank - 1))(pitch_bytes, *(step for _, step in outer)), (u32 * rank)(box[1], box[0], *ones),
                     (u32 * rank)(1, 1, *ones), 0, _SWIZZLES[swizzle], _L2_256B, _ZERO_FILL, about=f"tensor map of {name}")
        return ctypes.string_at(target, NBYTES)


def _box_problem(box, swizzle, itemsize):
    rows, cols = box
    if swizzle not in _SWIZZLES:
        return f"a swizzle of {swizzle} bytes. It is 0, 32, 64 or 128."
    if not (1 <= rows <= 256 and 1 <= cols <= 256):
        return f"a box of {rows} x {cols}. A copy moves at most 256 x 256."
    if cols * itemsize % 16 or (swizzle and cols * itemsize > swizzle):
        return (f"a box of {cols * itemsize} bytes a row with a {swizzle}-byte swizzle. It is a multiple of 16 and at most the "
                "swizzle.")
    return None


def _outer_problem(outer):
    if len(outer) > 3:
        return f"{2 + len(outer)} dimensions. The bulk copy engine knows five."
    for n, step in outer:
        if not 1 <= n < 1 << 32 or step % 16 or not 0 <= step < 1 << 40:
            return f"{n} matrices {step} bytes apart. The bulk copy engine needs at least one, and a multiple of 16 bytes."
    return None


def _target():
    # The driver writes the map with aligned vector stores: 64 bytes are required, and no binding's object guarantees them.
    if "at" not in _memory:
        _memory["buffer"] = ctypes.create_string_buffer(2 * NBYTES)
        _memory["at"] = -(-ctypes.addressof(_memory["buffer"]) // NBYTES) * NBYTES
    return _memory["at"]
