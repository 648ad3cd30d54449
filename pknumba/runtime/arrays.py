"""What an array is, whichever library made it: address, shape, strides, dtype, device.

No library is imported here: an array of it can only arrive if it is loaded already.
"""

import sys
from collections import namedtuple

from . import dlpack, dtypes
from ..errors import ContractError, DTypeError

__all__ = ["ArrayInfo", "describe", "empty_like_library", "library_of"]

#: ``pointer``: address of element (0, ...); ``strides``: bytes, one for each dimension, negative ones too; ``dtype``: a name such
#: as "bfloat16"; ``device``: "cpu" or a CUDA device number; ``owner``: what keeps the memory alive.
ArrayInfo = namedtuple("ArrayInfo", "pointer shape strides dtype device owner")


def describe(x, name="array"):
    """The ArrayInfo of `x`: NumPy, CuPy, torch, :class:`DeviceArray`, or anything with a CUDA array interface or DLPack.

    Strides, zero sizes and any number of dimensions are reported as they are; the operator judges them.

    Args:
        name: of the argument, for messages.

    Raises ContractError for what is no array, DTypeError for element types without a name here.
    """
    kind = type(x)
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _reader(x, name)
    return reader(x, name)


def library_of(x):
    """"numpy", "cupy", "torch", "pknumba" or "" (something with an interface only)."""
    for kind in type(x).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in ("numpy", "cupy", "torch", "pknumba"):
            return root
    return ""


def _reader(x, name):
    library = library_of(x)
    if library == "numpy" and isinstance(x, sys.modules["numpy"].ndarray):
        return _numpy
    if library == "torch" and isinstance(x, sys.modules["torch"].Tensor):
        return _torch
    if library == "cupy" and hasattr(x, "data") and hasattr(x, "strides"):
        return _cupy
    if library == "pknumba" and hasattr(x, "pointer"):
        return _ours
    if hasattr(x, "__cuda_array_interface__"):
        return _interface
    if hasattr(x, "__dlpack__"):
        return lambda array, name: ArrayInfo(*dlpack.read(array))
    raise ContractError(f"{name}: {type(x).__name__} is no array. Pass a NumPy, CuPy or torch array, or anything with "
                        "__cuda_array_interface__ or __dlpack__.")


def _numpy(x, name):
    dtype = x.dtype
    if not dtype.isnative:
        raise DTypeError(f"{name}: its bytes are swapped. The GPU is little-endian. Convert it with "
                         "x.astype(x.dtype.newbyteorder(\"=\")).")
    return ArrayInfo(x.ctypes.data, x.shape, x.strides, _names.get(dtype) or _name(dtype), "cpu", x)


def _cupy(x, name):
    memory, dtype = x.data, x.dtype
    return ArrayInfo(memory.ptr, x.shape, x.strides, _names.get(dtype) or _name(dtype), memory.device_id, x)


def _name(dtype):
    _names[dtype] = dtype.name  # NumPy works the name out anew each time
    return dtype.name


def _torch(x, name):
    size, device, dtype = x.element_size(), x.device, x.dtype
    where = "cpu" if device.type == "cpu" else device.index
    if device.type not in ("cpu", "cuda"):
        raise ContractError(f"{name}: a torch tensor on {device}. pknumba takes tensors on the CPU or a CUDA device.")
    if dtype not in _names:
        _names[dtype] = str(dtype).removeprefix("torch.")
    return ArrayInfo(x.data_ptr(), tuple(x.shape), tuple([s * size for s in x.stride()]), _names[dtype], where, x)


def _ours(x, name):
    return ArrayInfo(x.pointer, x.shape, x.strides, x.dtype, x.device, x)


def _interface(x, name):
    fields = x.__cuda_array_interface__
    if fields.get("mask") is not None:
        raise ContractError(f"{name}: a masked array. Kernels know no masks. Fill it first.")
    code, shape = fields["typestr"], tuple(fields["shape"])
    dtype = str(getattr(x, "dtype", "")) if code in ("<u2", "<V2", "|V2") else ""
    if dtype != "bfloat16":
        import numpy
        dtype = numpy.dtype(code).name
    size = dtypes.itemsize(dtype)
    strides = fields.get("strides")
    strides = tuple(strides) if strides is not None else dlpack._contiguous(shape, size)
    device = getattr(x, "device", None)
    pointer, device = fields["data"][0], getattr(device, "id", device)
    return ArrayInfo(pointer, shape, strides, dtype, device if isinstance(device, int) else _device_of(pointer), x)


def _device_of(pointer):
    from . import driver
    return driver.device_of(pointer) if pointer else (driver.current_device() or 0)


def empty_like_library(x, shape, dtype):
    """A new uninitialised array from the library and on the device of `x`.

    CuPy without bfloat16, and arrays of unknown libraries, give a :class:`DeviceArray`.
    """
    library, info = library_of(x), describe(x)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=x.device)
    if info.device == "cpu":
        import numpy
        return numpy.empty(shape, dtypes.numpy_dtype(dtype))
    if library == "cupy":
        try:
            return sys.modules["cupy"].empty(shape, dtypes.numpy_dtype(dtype))
        except (TypeError, ValueError, KeyError):
            pass  # a CuPy that does not know bfloat16
    from .device_array import DeviceArray
    return DeviceArray.empty(shape, dtype, info.device)


_readers, _names = {}, {}
