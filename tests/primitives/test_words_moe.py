"""The PTX words of the primitives of groups of rows, in the kernels that use them."""

import pytest

from pknumba.config import GroupedGemmConfig
from pknumba.kernels import GroupedGemm

from .tiny import ptx

pytestmark = pytest.mark.ptx

GROUPS = GroupedGemmConfig()

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {
    "load_ragged_async": (GroupedGemm, GROUPS, "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"),
    "store_ragged_async": (GroupedGemm, GROUPS, "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group",
                           "cp.async.bulk.commit_group;"),
    "look": (GroupedGemm, GROUPS, "ld.global.b32", "shfl.sync.idx.b32"),
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_ptx(name):
    kernel, cfg, *words = WORDS[name]
    text = ptx(kernel, cfg)
    assert not [word for word in words if word not in text]
