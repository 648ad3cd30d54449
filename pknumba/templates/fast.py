"""The cheap half of a call: what a repeated call needs to find its prepared launch, a microsecond for each array."""

import sys
from functools import partial

from ..errors import PknumbaError, WorldError


def _torch(x):
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def _cupy(x):
    return x.data.ptr, x.shape, x.strides, x.dtype


def _symmetric(x):
    return x.pointer, x.peers_table, x.shape, x.dtype


def _device(x):
    return x.pointer, x.shape, x.strides, x.dtype


def _reader(kind):
    root = kind.__module__.partition(".")[0]
    if root == "pknumba":
        return _symmetric if hasattr(kind, "peers_table") else _device if kind.__name__ == "DeviceArray" else None
    return {"torch": _torch, "cupy": _cupy}.get(root)


_readers = {}


def signature(A, B, out):
    """The fingerprints of a call's arrays; None where one has none."""
    kind = type(A)
    if kind is type(B) and kind is type(out) and kind.__module__ == "torch":    # the common case without four calls
        return (A.data_ptr(), A.shape, A.stride(), A.dtype, B.data_ptr(), B.shape, B.stride(), B.dtype,
                out.data_ptr(), out.shape, out.stride(), out.dtype)
    marks = fingerprint(A), fingerprint(B), fingerprint(out)
    return None if None in marks else marks


def fingerprint(x):
    """What a packed launch knows of an array: address, shape, strides, dtype. None for arrays of other libraries.

    It says nothing of who owns the memory: another array at the same place and of the same form gives the same launch.
    """
    kind = type(x)
    reader = _readers.get(kind, False)
    if reader is False:
        reader = _readers[kind] = _reader(kind)
    try:
        return reader and reader(x)
    except PknumbaError:                         # a closed array: the check says so, on every rank
        return None


def is_symmetric(x):
    """Whether x is a SymmetricArray, open or closed."""
    return hasattr(type(x), "peers_table")


def stream_source(world, stream, x):
    """A function that gives the pointer of the stream to launch on, now: the one given, the world's own, or the current one of
    the library that ``x`` belongs to."""
    if stream is None and not world.stream and type(x).__module__ == "torch" and x.is_cuda:
        raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
        if raw:                                     # ten times cheaper than the public object
            return partial(raw, x.get_device())
    if stream is None and not world.stream:
        return partial(world.stream_of, None, x)
    pointer = world.stream_of(stream, x)
    if stream is None:
        _check_current(world, pointer, x)
    return lambda: pointer


def _check_current(world, pointer, x):
    """Raise WorldError if torch works on another stream than this rank's own: nothing would order its kernels and ours."""
    if type(x).__module__ == "torch" and x.is_cuda:
        current = sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
        if current != pointer:
            raise WorldError("stream: torch's current stream is not this rank's own. Several ranks in one process each work on a stream of "
                             "their own. Import torch before World.local(n), or pass stream=torch.cuda.current_stream().")


def empty_product(form, world, A, B, rows):
    """An uninitialised array of A's library for what this rank gets of A @ B; None where A and B are no matrices or world is none
    (the check says so)."""
    try:
        try:
            given, cols = A.shape[0], B.shape[1]
        except AttributeError:                   # an array that shows nothing but DLPack
            from ..runtime import arrays
            given, cols = arrays.describe(A, "A").shape[0], arrays.describe(B, "B").shape[1]
        shape = form.result(form.whole(given, world, rows), cols, world)
        if type(A).__module__ == "torch":
            return A.new_empty(shape)
        from ..runtime import arrays
        return arrays.empty_like_library(A, shape, arrays.describe(A, "A").dtype)
    except (AttributeError, IndexError, TypeError, PknumbaError):
        return None
