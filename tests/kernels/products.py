"""What tests of whole products share: data, the float64 reference, and the error that rounding may make."""

import re

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
KINDS = {**DTYPES, "float32": np.dtype(np.float32)}
#: Rounding to nearest with p bits errs by at most this share.
UNIT = {"bfloat16": 2.0 ** -8, "float16": 2.0 ** -11, "float32": 2.0 ** -24}
_F32, _SMALLEST = 2.0 ** -24, {"float16": 2.0 ** -25}
#: Share by which a product of two float32 errs whose mantissas are cut to 10 bits: (1 + 2^-10)^2 - 1.
_CUT = {"float32": 2.0 ** -9 + 2.0 ** -20}


def matrix(rng, shape, dtype):
    """Normal numbers, scaled so that sums stay in range."""
    return (rng.standard_normal(shape) / 4).astype(KINDS[dtype])


def reference(pairs, dtype):
    """(float64 sum of the products, bound of the error of each element).

    Products of two 8- or 11-bit numbers are exact in float32; adding K of them errs by at most K * 2^-24 of the sum of their
    magnitudes, in any order. Of float32 the tensor cores take 11 bits. Each rank's product is rounded once, and the sum over ranks, made in
    float32, once more.
    """
    u, tiny, cut = UNIT[dtype], _SMALLEST.get(dtype, 0.0), _CUT.get(dtype, 0.0)
    total = bound = magnitude = 0.0
    for a, b in pairs:
        a, b = a.astype(np.float64), b.astype(np.float64)
        product, sizes = a @ b, np.abs(a) @ np.abs(b)
        error = (a.shape[1] * _F32 * (1 + cut) + cut) * sizes
        error = error + u * (np.abs(product) + error) + tiny
        total, bound, magnitude = total + product, bound + error, magnitude + np.abs(product) + error
    if len(pairs) > 1:
        bound = bound + len(pairs) * _F32 * magnitude
        bound = bound + u * (np.abs(total) + bound) + tiny
    return total, bound


def assert_close(c, pairs, dtype, what=""):
    """c is the sum of the products, within what rounding may do."""
    total, bound = reference(pairs, dtype)
    assert c.shape == total.shape and c.dtype == KINDS[dtype], f"{what}: {c.shape} {c.dtype}"
    wrong = ~(np.abs(np.asarray(c, np.float64) - total) <= bound)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} elements, first at {np.argwhere(wrong)[0]}"


def guarded(shape, dtype, row=1, col=3, pad=5):
    """(view of that shape, the larger array around it), full of NaN; rows of the view start anywhere."""
    around = np.full((shape[0] + 2 * row, shape[1] + col + pad), np.nan, DTYPES[dtype])
    return around[row:row + shape[0], col:col + shape[1]], around


def untouched(view, around):
    """Whether everything around the view is still NaN."""
    return np.isnan(around.astype(np.float32)).sum() >= around.size - view.size and bool(np.isnan(_without(view, around)).all())


def _without(view, around):
    mask = np.ones(around.shape, bool)
    offset = (view.ctypes.data - around.ctypes.data) // around.itemsize
    r, c = divmod(offset, around.shape[1])
    mask[r:r + view.shape[0], c:c + view.shape[1]] = False
    return around[mask].astype(np.float32)


def readable(error, *words):
    """The message reads *subject: fact. Rule. Remedy.* and has these words."""
    text = str(error).split("\n")[0]
    assert re.match(r"[^:]+: ", text), text
    assert len(re.split(r"\.\s+(?=[A-Z])", text)) >= 2 and text.rstrip().endswith("."), text
    for word in words:
        assert word in text, (word, text)
