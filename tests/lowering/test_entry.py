"""Who plays which role where, in the text of a kernel's entry."""

import pytest

from pknumba.kernels.all_gather_gemm import AllGatherGemm
from pknumba.config import AllGatherGemmConfig, GemmAllReduceConfig
from pknumba.kernels.gemm_all_reduce import GemmAllReduce, GemmAllReduceInside
from pknumba.lowering.entry import _source

KERNELS = pytest.mark.parametrize("kernel", [AllGatherGemm, GemmAllReduce])


@KERNELS
def test_every_role_is_played_in_one_place(kernel):
    plan = kernel.plan(kernel.config())
    source = _source(plan)
    for name in plan.roles:
        assert source.count(f" {name}(cfg, bind_{name}(") == 1, f"{name} in:\n{source}"


@pytest.mark.parametrize("kernel, config, workers", [(GemmAllReduceInside, GemmAllReduceConfig(intra_sm=True), 1),
                                                     (AllGatherGemm, AllGatherGemmConfig(c_stages=1, intra_sm=True), 2)])
def test_communicators_beside_others(kernel, config, workers):
    """The warp's number, which lanes learn by a shuffle of all of them, is asked before any branch; one thread of a warp communicates."""
    plan = kernel.plan(config)
    source = _source(plan)
    for name in plan.roles:
        assert source.count(f" {name}(cfg, bind_{name}(") == 1, f"{name} in:\n{source}"
    assert source.count("warp()") == 1 and source.index("number = warp()") < source.index("if ")
    first = 4 * plan.cfg.consumers + 2
    assert f"elif number >= {first} and number < {first + workers}:" in source and "if block < sms" not in source
    assert "if i32(cuda.threadIdx.x) & 31 == 0: communicator(" in source


@KERNELS
def test_communicators_have_blocks_of_their_own(kernel):
    compute, communicate = _source(kernel.plan(kernel.config())).split("    else:\n        workers")
    assert "communicator(" not in compute and "communicator(" in communicate
