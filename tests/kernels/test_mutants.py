"""Every synchronising line of every kernel matters: without it, or with it bent, the interpreter notices."""

import importlib

import pytest

from . import harness, mutation

POLICIES = ("random", "starve", "pct", "fifo")


@pytest.mark.parametrize("name, kernel", [("gemm", "Gemm"), ("gemm_all_reduce", "GemmAllReduce")])
def test_every_mutant_is_noticed(name, kernel):
    module = importlib.import_module(f"pknumba.kernels.{name}")
    world = 2 if getattr(module, kernel).communicates() else 1

    def run(broken, n):
        harness.run(broken, harness.toy(broken, ping_pong=n % 2 == 1), world=world, seed=n, policy=POLICIES[n % 4], max_switches=200_000)

    run(getattr(module, kernel), 0)
    alive, count = mutation.survivors(module, kernel, run, tries=8, report=print)
    assert not alive, "\n".join(alive)
    assert count >= (6 if kernel == "GemmAllReduce" else 20)
