"""Who plays which role where, in the text of a kernel's entry."""

import pytest

from pknumba.kernels.all_gather_gemm import AllGatherGemm
from pknumba.config import GemmAllReduceConfig
from pknumba.kernels.gemm_all_reduce import GemmAllReduce, GemmAllReduceInside
from pknumba.lowering.entry import _source

KERNELS = pytest.mark.parametrize("kernel", [AllGatherGemm, GemmAllReduce])


@KERNELS
def test_every_role_is_played_in_one_place(kernel):
    plan = kernel.plan(kernel.config())
    source = _source(plan)
    for name in plan.roles:
        assert source.count(f" {name}(cfg, bind_{name}(") == 1, f"{name} in:\n{source}"


def test_communicators_beside_others():
    """The warp's number, which lanes learn by a shuffle of all of them, is asked before any branch; two warps communicate."""
    plan = GemmAllReduceInside.plan(GemmAllReduceConfig(intra_sm=True, piece_m=1))
    source = _source(plan)
    for name in plan.roles:
        assert source.count(f" {name}(cfg, bind_{name}(") == 1, f"{name} in:\n{source}"
    assert source.count("warp()") == 1 and source.index("number = warp()") < source.index("if ")
    assert f"elif number >= {4 * plan.cfg.consumers + 2}:" in source and "if block < sms" not in source


@KERNELS
def test_communicators_have_blocks_of_their_own(kernel):
    compute, communicate = _source(kernel.plan(kernel.config())).split("    else:\n        workers")
    assert "communicator(" not in compute and "communicator(" in communicate
