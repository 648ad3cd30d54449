"""The pointer of a stream, whoever made it."""

import ctypes
import sys

from . import libcuda
from ..errors import ContractError

__all__ = ["pointer_of", "capturing", "LEGACY"]

#: The legacy default stream.
LEGACY = 0


def pointer_of(stream=None, *arrays):
    """The CUstream of `stream` as an integer.

    Args:
        stream: an int; a stream of CuPy, torch or cuda.core; anything with ``__cuda_stream__``; or None: the current stream of
            the library that the first of `arrays` to have one belongs to (CuPy, torch), else the legacy default stream.

    Raises ContractError for anything else.
    """
    if stream is None:
        return _current(arrays)
    if type(stream) is int:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for attribute in ("cuda_stream", "ptr", "handle"):  # torch; CuPy; cuda.core and numba
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise ContractError(f"stream: {type(stream).__name__} is no stream. It is an int, a stream of CuPy, torch or cuda.core, or "
                        "has __cuda_stream__.")


def capturing(pointer):
    """Whether what is launched on the stream with this pointer goes into a CUDA graph. The legacy default stream cannot be captured."""
    state = ctypes.c_int(0)
    if pointer != LEGACY:
        libcuda.call("cuStreamIsCapturing", pointer, ctypes.byref(state))
    return state.value != 0


def _current(arrays):
    for array in arrays:
        library = type(array).__module__.partition(".")[0]
        if library == "torch":
            torch = sys.modules["torch"]
            return torch.cuda.current_stream(array.device).cuda_stream if array.is_cuda else LEGACY
        if library == "cupy":
            return sys.modules["cupy"].cuda.get_current_stream().ptr
    return LEGACY
