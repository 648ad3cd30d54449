"""Names of element types in NumPy, CuPy, torch, the CUDA array interface and DLPack. bfloat16 is ml_dtypes' in NumPy."""

from ..errors import DTypeError

__all__ = ["itemsize", "numpy_dtype", "typestr", "dlpack_code", "name_of_dlpack", "name_of"]

#: name -> (CUDA array interface typestr, DLPack (code, bits)). The interface has no code for the types that NumPy lacks: an
#: array of them shows its bits as unsigned integers there, and keeps its name in ``dtype`` and in DLPack.
_TYPES = {
    "bfloat16": ("<u2", (4, 16)), "float16": ("<f2", (2, 16)), "float32": ("<f4", (2, 32)), "float64": ("<f8", (2, 64)),
    "int8": ("|i1", (0, 8)), "int16": ("<i2", (0, 16)), "int32": ("<i4", (0, 32)), "int64": ("<i8", (0, 64)),
    "uint8": ("|u1", (1, 8)), "uint16": ("<u2", (1, 16)), "uint32": ("<u4", (1, 32)), "uint64": ("<u8", (1, 64)),
    "bool": ("|b1", (6, 8)),
}
_DLPACK = {code: name for name, (_, code) in _TYPES.items()}


def _known(name):
    try:
        return _TYPES[name]
    except KeyError:
        raise DTypeError(f"dtype {name!r}: not one that pknumba knows. It knows {', '.join(_TYPES)}.") from None


def itemsize(name):
    """Bytes of an element."""
    return _known(name)[1][1] // 8


def numpy_dtype(name):
    """NumPy's dtype of that name; bfloat16 from ml_dtypes."""
    import numpy
    _known(name)
    if name == "bfloat16":
        import ml_dtypes
        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)


def typestr(name):
    """The dtype's code in ``__cuda_array_interface__``."""
    return _known(name)[0]


def dlpack_code(name):
    """(type code, bits) in DLPack."""
    return _known(name)[1]


def name_of_dlpack(code, bits, lanes=1):
    """The name of a DLPack type. Raises DTypeError if it is none of ours."""
    name = _DLPACK.get((code, bits)) if lanes == 1 else None
    if name is None:
        raise DTypeError(f"DLPack: type code {code} with {bits} bits and {lanes} lanes. pknumba knows {', '.join(_TYPES)}.")
    return name


def name_of(dtype):
    """The name of a dtype given as a name, a NumPy dtype or type, or a torch dtype."""
    if isinstance(dtype, str):
        return dtype
    text = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
    return text.removeprefix("torch.")
