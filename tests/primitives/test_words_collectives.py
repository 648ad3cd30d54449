"""The PTX words of the primitives of collectives, in the kernels that use them."""

import pytest

from pknumba.config import CommConfig, NormConfig
from pknumba.kernels.all_gather import AllGatherParcels
from pknumba.kernels.all_reduce import AllReduce, OneShot
from pknumba.kernels.all_reduce_rmsnorm import AllReduceRmsNorm
from pknumba.kernels.all_to_all import AllToAll, AllToAllRagged
from pknumba.kernels.reduce_scatter import ReduceScatterParcels

from .tiny import lacking

pytestmark = pytest.mark.ptx

COPIES, NORM = CommConfig(copy_in=True, copy_out=True), NormConfig(copy_in=True)
VECTORS = "ld.relaxed.sys.global.v4.b32", "st.relaxed.sys.global.v4.b32"

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {
    "announce": (AllReduce, COPIES, "bar.warp.sync 0xffffffff; fence.acq_rel.sys;", "red.relaxed.sys.global.add.u32"),
    "await_all": (AllReduce, COPIES, "ld.acquire.sys.global.u32", "mov.u64 t, %globaltimer;", "bar.warp.sync 0xffffffff;"),
    "times": (AllReduce, COPIES, "ld.relaxed.sys.global.u32"),
    "tick": (OneShot, COPIES, "red.relaxed.gpu.global.add.u32"),
    "copy_box": (AllReduce, COPIES, *VECTORS, "ld.relaxed.sys.global.b16", "st.relaxed.sys.global.b16"),
    "copy_boxes": (AllToAll, COPIES, *VECTORS, "ld.relaxed.sys.global.b16", "st.relaxed.sys.global.b16"),
    "entry": (AllToAllRagged, COPIES, "ld.global.b32"),
    "reduce_box": (AllReduce, COPIES, *VECTORS, "cvt.rn.bf16x2.f32", "cvt.rn.bf16.f32"),
    "send_box": (ReduceScatterParcels, COPIES, VECTORS[0], "ld.relaxed.sys.global.b16", "st.relaxed.sys.global.b128"),
    "take_boxes": (AllGatherParcels, COPIES, "ld.relaxed.sys.global.b128", VECTORS[1], "st.relaxed.sys.global.b16"),
    "reduce_boxes": (ReduceScatterParcels, COPIES, "ld.relaxed.sys.global.b128", VECTORS[1], "cvt.rn.bf16x2.f32"),
    "squares": (AllReduceRmsNorm, NORM, VECTORS[0], "fma.rn.f32", "shfl.sync.bfly.b32"),
    "over_warps": (AllReduceRmsNorm, NORM, "st.shared.f32", "bar.sync 4;", "ld.shared.f32"),
    "normalise": (AllReduceRmsNorm, NORM, *VECTORS, "rcp.approx.ftz.f32", "rsqrt.approx.f32"),
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_ptx(name):
    kernel, cfg, *words = WORDS[name]
    assert lacking(words, kernel, cfg) == []
