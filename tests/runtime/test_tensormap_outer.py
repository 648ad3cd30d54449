"""Tensor maps of arrays of matrices."""

import pytest

from pknumba.errors import LayoutError
from pknumba.runtime import tensormap


def test_further_dimensions_follow_rows(stub):
    tensormap.encode(0x7f0000000000, (300, 128), 2048, "bfloat16", (80, 64), outer=((8, 256), (3, 614400)))
    assert stub.log("cuTensorMapEncodeTiled") == ["cuTensorMapEncodeTiled dtype 9 rank 4 dims 128,300 stride 2048 box 64,80 steps 1,1 "
                                                  "interleave 0 swizzle 3 l2 3 fill 0 align 0 outer 8 stride 256 box 1 step 1 "
                                                  "outer 3 stride 614400 box 1 step 1"]


@pytest.mark.parametrize("outer, text", [(((0, 256),), "at least one"), (((2, 8),), "multiple of 16"), (((2, -16),), "multiple of 16"),
                                         (((1, 16),) * 4, "five")])
def test_what_the_engine_cannot_move(stub, outer, text):
    with pytest.raises(LayoutError, match=f"K: .*{text}"):
        tensormap.encode(1024, (64, 64), 128, "bfloat16", (64, 64), name="K", outer=outer)
    assert stub.log() == []
