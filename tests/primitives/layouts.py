"""Where elements lie: register fragments and swizzled tiles, from the PTX manual and the bulk copy engine's."""

import numpy as np
from numba.cuda import types

from pknumba.tiles import Role, Tile

from .tiny import dtype_of

__all__ = ["CONSUMER", "COMMUNICATOR", "BASE", "DTYPES", "ROW", "lit", "values", "shared_bytes", "fragments", "matrix",
           "row_slots", "rows_of"]

CONSUMER, COMMUNICATOR = Role("consumer", "warpgroup"), Role("communicator", "warp", 8)
BASE = 2048
DTYPES = ("bfloat16", "float16", "float32")
THREAD = np.arange(128)
ROW, COL = 16 * (THREAD // 32) + THREAD % 32 // 4, 2 * (THREAD % 4)


def lit(x):
    return types.none if x is None else types.literal(x)


def values(shape, dtype="float32", seed=0):
    """Different values in every element, exact in every dtype."""
    x = np.random.default_rng(seed).permutation(np.prod(shape)).reshape(shape) % 251 - 125
    return x.astype(dtype_of(dtype))


def shared_bytes(x, swizzle):
    """The bytes of a tile as the bulk copy engine writes it: panels one after the other, 16-byte chunks permuted by the row."""
    decl = Tile(x.shape, x.dtype.name, swizzle)
    out = np.zeros(x.nbytes, np.uint8)
    r, c = np.indices(x.shape)
    at = c // decl.panel * x.shape[0] * swizzle + r * swizzle + c % decl.panel * x.itemsize
    at ^= (at >> 7 & swizzle // 16 - 1) << 4
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.itemsize)
    for byte in range(x.itemsize):
        out[at + byte] = raw[..., byte]
    return out


def fragments(x):
    """A matrix as the register arrays of an accumulator: element i of each thread."""
    rows, cols = x.shape
    return [x[64 * m + ROW + 8 * (i >> 1 & 1), 8 * (i // 4) + COL + (i & 1)].astype(np.float32)
            for m in range(rows // 64) for i in range(cols // 2)]


def matrix(elements, rows, cols):
    """The inverse of ``fragments``."""
    x = np.full((rows, cols), np.nan, np.float32)
    for n, element in enumerate(elements):
        m, i = divmod(n, cols // 2)
        x[64 * m + ROW + 8 * (i >> 1 & 1), 8 * (i // 4) + COL + (i & 1)] = element
    return x


def row_slots(v):
    """A row vector as register arrays, and back."""
    return [v[64 * (s // 2) + ROW + 8 * (s % 2)].astype(np.float32) for s in range(len(v) // 32)]


def rows_of(slots):
    v = np.full(32 * len(slots), np.nan, np.float32)
    for s, slot in enumerate(slots):
        at = 64 * (s // 2) + ROW + 8 * (s % 2)
        assert (v[at][THREAD % 4 != 0] == slot[THREAD % 4 != 0]).all() or np.isnan(v[at]).all()
        v[at] = slot
        assert (v[at] == slot).all(), "the threads of a quad disagree"
    return v
