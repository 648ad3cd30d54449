"""Random right kernels are clean in every schedule; without any line that they need, every schedule says so."""

import os
import random

import pytest

from ..bugs import bench
from ..bugs.test_bugs import SCHEDULES
from .pipelines import Pipeline

#: How many kernels. PKNUMBA_FUZZ=200 takes minutes; it was run.
KERNELS = int(os.environ.get("PKNUMBA_FUZZ", "4"))


@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_kernels(seed):
    schedules = [SCHEDULES[(seed + j) % len(SCHEDULES)] for j in range(3)]

    def run(without, number):
        policy, completion = schedules[number]
        bench.run(Pipeline(random.Random(seed), without), seed=number, policy=policy, completion=completion)

    for number in range(len(schedules)):
        run("", number)
    for line in Pipeline(random.Random(seed)).lines():
        for number in range(len(schedules)):
            with pytest.raises(Exception):                      # noqa: B017 - a race, a deadlock, misuse or a wrong result
                run(line, number)
                pytest.fail(f"without {line}, {schedules[number]}: {Pipeline(random.Random(seed), line)}")
