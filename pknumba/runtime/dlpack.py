"""DLPack by ctypes: read what an array exports, and export memory of ours (bfloat16 included)."""

import ctypes

from .dtypes import dlpack_code, itemsize, name_of_dlpack
from ..errors import ContractError

__all__ = ["read", "export", "CPU", "CUDA"]

#: Device types of DLPack; 3 is pinned host memory, 13 managed memory.
CPU, CUDA = 1, 2


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

#: Exports that a consumer still holds: address of the managed tensor -> what keeps it alive.
_alive = {}


def read(array):
    """(pointer, shape, strides in bytes, dtype name, device: "cpu" or int, capsule) of an object with ``__dlpack__``.

    The memory stays valid as long as the capsule lives. Raises ContractError or DTypeError.
    """
    capsule = array.__dlpack__()
    if not _valid(id(capsule), b"dltensor"):
        raise ContractError(f"{type(array).__name__}: its __dlpack__ returned no unused DLPack capsule.")
    tensor = _Managed.from_address(_pointer(capsule, b"dltensor")).tensor
    name = name_of_dlpack(tensor.code, tensor.bits, tensor.lanes)
    size, shape = itemsize(name), tuple(tensor.shape[:tensor.ndim])
    strides = tuple(s * size for s in tensor.strides[:tensor.ndim]) if tensor.strides else _contiguous(shape, size)
    if tensor.device_type not in (CPU, CUDA, 3, 13):
        raise ContractError(f"{type(array).__name__}: it lives on DLPack device type {tensor.device_type}. pknumba takes host "
                            "and CUDA memory.")
    device = "cpu" if tensor.device_type in (CPU, 3) else tensor.device_id
    return (tensor.data or 0) + tensor.offset, shape, strides, name, device, capsule


def _contiguous(shape, size):
    strides = []
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))


@_Deleter
def _release(managed):
    _alive.pop(ctypes.addressof(managed.contents), None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _drop(capsule):
    # Called as the capsule dies. One that a consumer took is renamed "used_dltensor", and its consumer calls the deleter.
    if _valid(capsule, b"dltensor"):
        _alive.pop(_raw_pointer(capsule, b"dltensor"), None)


def export(owner, pointer, shape, strides, dtype, device):
    """A DLPack capsule of memory: `strides` in bytes, `device` its number or "cpu". It keeps `owner` alive."""
    size, ndim = itemsize(dtype), len(shape)
    dims, steps = (ctypes.c_int64 * max(ndim, 1))(*shape), (ctypes.c_int64 * max(ndim, 1))(*(s // size for s in strides))
    code, bits = dlpack_code(dtype)
    place = (CPU, 0) if device == "cpu" else (CUDA, device)
    managed = _Managed(_Tensor(pointer, *place, ndim, code, bits, 1, dims, steps, 0), None, _release)
    _alive[ctypes.addressof(managed)] = managed, dims, steps, owner
    return _new(ctypes.addressof(managed), b"dltensor", ctypes.cast(_drop, ctypes.c_void_p))
