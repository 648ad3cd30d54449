"""The PTX words of the primitives of groups of rows, in the kernels that use them."""

import pytest

from pknumba.config import CommConfig, GroupedGemmConfig, MoeConfig
from pknumba.kernels import GroupedGemm, MoeDispatchGemm
from pknumba.kernels.moe_combine import MoeSum
from pknumba.kernels.moe_dispatch_gemm import MoeGather, Route

from .tiny import lacking

pytestmark = pytest.mark.ptx

GROUPS, TABLES, EXPERTS = GroupedGemmConfig(), CommConfig(dtype="int32"), MoeConfig()
STORE = "st.relaxed.sys.global.b32"

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {
    "load_ragged_async": (GroupedGemm, GROUPS, "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"),
    "store_ragged_async": (GroupedGemm, GROUPS, "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group",
                           "cp.async.bulk.commit_group;"),
    "tally": (Route, TABLES, "ld.global.b32", "vote.sync.ballot.b32", "popc.b32"),
    "add_up": (Route, TABLES, "ld.global.b32", "shfl.sync.bfly.b32"),
    "check_in": (Route, TABLES, "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32"),
    "await_blocks": (Route, TABLES, "ld.acquire.sys.global.u32"),
    "deal": (Route, TABLES, "ld.global.b32", "%lanemask_lt", STORE),
    "drop": (Route, TABLES, "setp.ge.u32", STORE),
    "put": (Route, TABLES, STORE),
    "carry": (MoeDispatchGemm, EXPERTS, "ld.relaxed.sys.global.v4.b32", "st.relaxed.sys.global.v4.b32"),
    "post": (MoeDispatchGemm, EXPERTS, "fence.proxy.async;", "fence.acq_rel.sys; red.relaxed.sys.global.add.u32"),
    "weigh": (MoeSum, EXPERTS, "fma.rn.f32", "ld.relaxed.sys.global.v4.b32", "cvt.rn.bf16x2.f32"),
    "activate": (MoeDispatchGemm, EXPERTS.replace(activation="silu"), "ex2.approx.ftz.f32", "rcp.approx.ftz.f32"),
    "spread": (MoeGather, EXPERTS, "ld.relaxed.sys.global.v4.b32", "st.relaxed.sys.global.v4.b32", "shfl.sync.idx.b32"),
    "look": (GroupedGemm, GROUPS, "ld.global.b32", "shfl.sync.idx.b32"),
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_ptx(name):
    kernel, cfg, *words = WORDS[name]
    assert lacking(words, kernel, cfg) == []
