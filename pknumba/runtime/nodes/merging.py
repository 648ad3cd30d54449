"""What nodes give, put together with the functions of the arrays' own library: attention by its log-sum-exp, tokens by their rows."""

import sys
from contextlib import nullcontext

__all__ = ["add", "begin", "can_merge", "finish", "gather_sums", "on", "packed", "padded", "rows_of", "tokens_of",
           "zeros"]

_LIBRARIES = ("numpy", "cupy", "torch")


def _library(x):
    return sys.modules[next(name for name in _LIBRARIES if any(kind.__module__.partition(".")[0] == name for kind in type(x).__mro__))]


def can_merge(x):
    """Whether an array's library has the functions."""
    return any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(x).__mro__)


def _float(x):
    return x.float() if hasattr(x, "float") else x.astype("float32")


def packed(x, rows):
    """The first rows of every head, without gaps."""
    part = x[:, :, :rows]
    return part.contiguous() if hasattr(part, "contiguous") else _library(x).ascontiguousarray(part)


def begin(o, lse):
    """[O in float32, log-sum-exp], to be added to."""
    return [_float(o), lse]


def add(total, more, first):
    """Add (O, log-sum-exp) of further keys to the rows from ``first`` on. A row that sees none of them has -inf."""
    xp, (o, lse) = _library(total[1]), more
    old = total[1][:, :, first:]
    top = xp.maximum(old, lse)
    base = xp.where(top == -float("inf"), xp.zeros_like(top), top)
    a, b = xp.exp(old - base), xp.exp(lse - base)
    weight = a + b
    safe = xp.where(weight == 0, xp.ones_like(weight), weight)
    total[0][:, :, first:] = (total[0][:, :, first:] * a[..., None] + _float(o) * b[..., None]) / safe[..., None]
    total[1][:, :, first:] = xp.where(weight == 0, top, base + xp.log(safe))


def finish(total, out, lse):
    """Round to the results."""
    o = total[0]
    out[...] = o.to(out.dtype) if hasattr(o, "to") and hasattr(o, "float") else o.astype(out.dtype)
    if lse is not False:
        lse[...] = total[1]


def on(x, stream):
    """Context in which the library of ``x`` works on a stream (pointer)."""
    library = _library(x)
    if library.__name__ == "torch" and x.is_cuda:
        # ExternalStream(0) is no name of the default stream: it is one of torch's pool
        cuda = library.cuda
        return cuda.stream(cuda.ExternalStream(stream, x.device) if stream else cuda.default_stream(x.device))
    if library.__name__ == "cupy":
        return library.cuda.ExternalStream(stream)
    return nullcontext()


def tokens_of(indices, first, end):
    """(tokens with an expert of that range, indices (T, k) counted from its first, -1 for others)."""
    inside = (indices >= first) & (indices < end)
    found = inside.any(1).nonzero()
    places = indices - first
    places[~inside] = -1
    return (found[0] if isinstance(found, tuple) else found[:, 0]), places


def rows_of(x, rows):
    """These rows, without gaps."""
    part = x[rows]
    return part.contiguous() if hasattr(part, "contiguous") else _library(x).ascontiguousarray(part)


def padded(x, rows, fill):
    """x, and rows of ``fill`` until there are so many."""
    from ..arrays import describe, empty_like_library
    whole = empty_like_library(x, (rows, *x.shape[1:]), describe(x).dtype)
    whole[len(x):] = fill
    whole[:len(x)] = x
    return whole


def zeros(x, shape, dtype):
    """A new array of x's library."""
    from ..arrays import empty_like_library
    made = empty_like_library(x, shape, dtype)
    made[...] = 0
    return made


def gather_sums(out, terms):
    """out = the terms added in float32, in their order, rounded once. terms: (rows that it has, all for None; array)."""
    total = zeros(out, out.shape, "float32")
    for rows, term in terms:
        if rows is None:
            total += _float(term)
        else:
            total[rows] += _float(term)
    out[...] = total.to(out.dtype) if hasattr(total, "float") else total.astype(out.dtype)
