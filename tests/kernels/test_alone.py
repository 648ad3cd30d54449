"""On one rank there is nothing to communicate: operators run the kernel of one GPU, and make no symmetric memory."""

import numpy as np
import pytest

from pknumba import AllGatherGemmConfig, GemmReduceScatterConfig, World, all_gather_gemm, gemm, gemm_all_reduce, gemm_reduce_scatter
from pknumba.config import GemmAllReduceConfig
from pknumba.errors import ConfigError
from pknumba.kernels import Gemm

from .products import matrix

OPERATORS = {gemm_all_reduce: GemmAllReduceConfig, gemm_reduce_scatter: GemmReduceScatterConfig, all_gather_gemm: AllGatherGemmConfig}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda f: f.__name__)
def test_one_rank_runs_gemm(operator):
    rng = np.random.default_rng(0)
    a, b = matrix(rng, (130, 70), "bfloat16"), matrix(rng, (70, 50), "bfloat16")
    with World.local(1, executor="interpreter") as world:
        expected = gemm(world, a, b)
        small = OPERATORS[operator](tile_m=64, tile_n=32, stages=3, c_stages=1, consumers=1, comm_sms=2)
        for config in (None, small):
            assert (operator(world, a, b, config=config) == expected).all()
        assert world._made == 0
        played = {key[1] for key in world.cache if key[0] == "workspace"}
        assert played and all(issubclass(kernel, Gemm) and not kernel.communicates() for kernel in played)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda f: f.__name__)
def test_the_same_rules_hold(operator):
    a = np.ones((8, 8), np.float16)
    with World.local(1, executor="interpreter") as world, pytest.raises(ConfigError, match="comm_sms = 4"):
        operator(world, a, a, config=OPERATORS[operator](comm_sms=4))
