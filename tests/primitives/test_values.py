"""What every primitive's body does, on the interpreter: tiny kernels with exact results."""

import numpy as np
import pytest

from . import kernels, rank_kernels
from .cases import CASES
from .tiny import TinyConfig, run

CPU = [case for case in CASES if not case.device_only]


@pytest.mark.parametrize("case", CPU, ids=[case.name for case in CPU])
def test_value(case):
    case.check(run)


@pytest.mark.parametrize("policy", ["starve", "pct"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["sync", "turns", "relay 3", "barrier 3", "FromRegisters bfloat16 64x64 128"])
def test_value_under_other_schedules(name, seed, policy):
    case = next(c for c in CASES if c.name == name)
    case.check(run, seed=seed, policy=policy)


def test_overflow_is_infinite_and_quiet():
    """What is too large for a dtype is stored, added and reduced as infinity, and NaN comes of that, without a warning."""
    x = np.full((64, 64), 4e4, np.float16)
    assert np.isinf(run(kernels.StoreAdd, TinyConfig(dtype="float16"), X=x, Y=x)["Y"][0]).all()
    big = np.full((16, 32), 6e4, np.float16)
    cfg = TinyConfig(dtype="float16", rows=16, cols=32)
    assert np.isinf(run(rank_kernels.AllReduce, cfg, world=2, X=big, Y=big)["X"][0]).all()
    opposite = [np.full((16, 32), sign * np.inf, np.float16) for sign in (1, -1)]
    assert np.isnan(run(rank_kernels.AllReduce, cfg, world=2, X=opposite, Y=big)["X"][0]).all()
