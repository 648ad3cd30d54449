"""Arrays of every library, described."""

import subprocess
import sys
import timeit

import ml_dtypes
import numpy as np
import pytest

from pknumba.errors import ContractError, DTypeError, LayoutError, ShapeError, WorldError
from pknumba.runtime import DeviceArray, World, arrays, describe, dlpack, empty_like_library, streams


@pytest.mark.parametrize("x, shape, strides", [
    (np.zeros((4, 6), "f4"), (4, 6), (24, 4)), (np.zeros((4, 6), "f4").T, (6, 4), (4, 24)),
    (np.zeros((4, 6), "f4")[::-1, ::2], (4, 3), (-24, 8)), (np.zeros((0, 3), "f2"), (0, 3), np.zeros((0, 3), "f2").strides),
    (np.zeros((2, 3, 4), "i4"), (2, 3, 4), (48, 16, 4)), (np.array(3, "f4"), (), ()),
    (np.broadcast_to(np.zeros(3, "u4"), (2, 3)), (2, 3), (0, 4))])
def test_numpy(x, shape, strides):
    info = describe(x)
    assert info.shape == shape and info.strides == strides and info.device == "cpu" and info.owner is x
    assert info.dtype == x.dtype.name
    assert not x.size or info.pointer == x.__array_interface__["data"][0]


def test_bfloat16_is_ml_dtypes():
    x = np.zeros((2, 2), ml_dtypes.bfloat16)
    assert describe(x).dtype == "bfloat16"
    assert empty_like_library(x, (3,), "bfloat16").dtype == ml_dtypes.bfloat16


def test_what_is_no_array():
    with pytest.raises(ContractError, match="B: list is no array"):
        describe([1, 2], "B")
    with pytest.raises(DTypeError, match="swapped"):
        describe(np.zeros(3, ">f4"))


class Foreign:
    """Only an interface, as another library's array has."""

    def __init__(self, **fields):
        self.__cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3, **fields}


def test_cuda_array_interface(stub):
    info = describe(Foreign())
    assert info[:5] == (4096, (2, 3), (12, 4), "float32", 0)
    assert describe(Foreign(strides=(32, 4))).strides == (32, 4)
    with pytest.raises(ContractError, match="masked"):
        describe(Foreign(mask=1))


def test_device_array_describes_itself(stub):
    a = DeviceArray.empty((3, 5), "bfloat16")
    assert describe(a)[:5] == (a.pointer, (3, 5), (10, 2), "bfloat16", 0)
    assert a.__cuda_array_interface__["typestr"] == "<u2"
    assert a.set(np.full((3, 5), 1.5)).get().dtype == ml_dtypes.bfloat16
    with pytest.raises(ShapeError, match=r"shape \(4,\) into \(3, 5\)"):
        a.set(np.zeros(4))
    assert empty_like_library(a, (2,), "int32").dtype == "int32"
    with pytest.raises(LayoutError, match="rows of contiguous"):
        DeviceArray(a.pointer, (3, 5), "bfloat16", 0, (2, 6)).get()


class OnlyDLPack:
    def __init__(self, x):
        self.x = x

    def __dlpack__(self):
        return self.x.__dlpack__()


def test_dlpack_of_others_and_ours(stub):
    x = np.arange(6, dtype="f4").reshape(2, 3).T
    assert describe(OnlyDLPack(x))[:5] == (x.ctypes.data, (3, 2), (4, 12), "float32", "cpu")
    a = DeviceArray.empty((3, 5), "bfloat16")
    assert describe(OnlyDLPack(a))[:5] == (a.pointer, (3, 5), (10, 2), "bfloat16", 0)
    assert a.__dlpack_device__() == (2, 0)
    assert not dlpack._alive  # unused capsules let go


def test_nothing_is_imported():
    code = ("import sys, numpy, pknumba.runtime as r; r.describe(numpy.zeros(3)); print([m for m in ('torch', 'cupy', 'numba', "
            "'mpi4py', 'cuda', 'ml_dtypes', 'greenlet') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out


def test_quick():
    x = np.zeros((64, 64), "f4")
    assert min(timeit.repeat(lambda: describe(x, "A"), number=1000, repeat=5)) / 1000 < 30e-6


def test_symmetric_arrays_are_arrays():
    with World.local(1, executor="interpreter") as world:
        c = world.symmetric((4, 5), "bfloat16")
        assert describe(c)[:5] == (c.local.ctypes.data, (4, 5), (16, 2), "bfloat16", "cpu")
        assert not hasattr(c, "__cuda_array_interface__")
    with pytest.raises(WorldError, match="closed"):
        describe(c)


def test_streams():
    class Torch:
        cuda_stream = 7

    class CuPy:
        ptr = 8

    class Core:
        def __cuda_stream__(self):
            return 0, 9

    class Handle:
        handle = Torch.cuda_stream

    assert [streams.pointer_of(s) for s in (None, 5, Torch(), CuPy(), Core(), Handle())] == [0, 5, 7, 8, 9, 7]
    assert streams.pointer_of(None, np.zeros(1)) == streams.LEGACY
    with pytest.raises(ContractError, match="str is no stream"):
        streams.pointer_of("x")


def test_library_of():
    assert arrays.library_of(np.zeros(1)) == "numpy" and arrays.library_of([]) == ""
