"""What every primitive's body does, on the interpreter: tiny kernels with exact results."""

import pytest

from .cases import CASES
from .tiny import run

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
