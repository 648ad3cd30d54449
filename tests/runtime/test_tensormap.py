"""Tensor maps: the arguments the driver sees, and which matrices are refused."""

import pytest

from pknumba.errors import DTypeError, LayoutError
from pknumba.runtime import tensormap


def test_arguments_are_columns_first(stub):
    data = tensormap.encode(0x7f0000000000, (8192, 4000), 8192, "bfloat16", (128, 64))
    assert isinstance(data, bytes) and len(data) == 128
    assert stub.log("cuTensorMapEncodeTiled") == ["cuTensorMapEncodeTiled dtype 9 rank 2 dims 4000,8192 stride 8192 box 64,128 "
                                                  "steps 1,1 interleave 0 swizzle 3 l2 3 fill 0 align 0"]


@pytest.mark.parametrize("dtype, code, swizzle, swizzle_code", [
    ("float32", 7, 64, 2), ("float16", 6, 32, 1), ("uint32", 2, 0, 0)])
def test_dtypes_and_swizzles(stub, dtype, code, swizzle, swizzle_code):
    tensormap.encode(0x1000, (64, 64), 256, dtype, (8, 8), swizzle)
    assert f"dtype {code} " in stub.log()[0] and f"swizzle {swizzle_code} " in stub.log()[0]


@pytest.mark.parametrize("change, text", [
    (dict(pointer=8), "8 bytes past a multiple of 16"), (dict(pitch_bytes=136), "136 bytes apart.*multiple of 16"),
    (dict(pitch_bytes=64), "must not overlap"), (dict(pitch_bytes=-128), "must not overlap"),
    (dict(shape=(0, 64)), "at least one element"), (dict(shape=(1 << 32, 64)), "counts up to"),
    (dict(box=(300, 8)), "at most 256 x 256"), (dict(box=(8, 128)), "at most the swizzle"), (dict(box=(8, 4)), "multiple of 16"),
    (dict(swizzle=16), "0, 32, 64 or 128")])
def test_what_the_engine_cannot_move_is_a_layout_error(stub, change, text):
    arguments = dict(pointer=1024, shape=(64, 64), pitch_bytes=128, dtype="bfloat16", box=(64, 64), swizzle=128, name="A")
    arguments.update(change)
    with pytest.raises(LayoutError, match=f"A: .*{text}"):
        tensormap.encode(**arguments)
    assert stub.log() == []


def test_unknown_dtype(stub):
    with pytest.raises(DTypeError, match="does not move float64"):
        tensormap.encode(0, (1, 2), 16, "float64", (1, 2))
