"""Every synchronising line of every kernel matters: without it, or with it bent, the interpreter notices."""

import importlib

import pytest

from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.templates import drivers

from . import harness, mutation

TRIES = 12


def play(kernel, n):
    """The n-th try: consumers together and in turns, every policy and completion, several calls, ranks late in turn."""
    world = 2 + n // 2 % 2 if kernel.communicates() else 1
    cfg = harness.toy(kernel, ping_pong=n % 2 == 1, c_stages=1 + n % 3)
    harness.run(kernel, cfg, world, calls=3, skew=40, max_switches=200_000, **harness.schedule(n))


@pytest.mark.parametrize("kernel", [Gemm, GemmAllReduce])
def test_every_mutant_of_a_kernel_is_noticed(kernel):
    module = importlib.import_module(kernel.__module__)
    alive, count = mutation.survivors(module, lambda m: getattr(m, kernel.__name__), play, TRIES, print, {kernel.__name__})
    assert not alive, "\n".join(alive)
    assert count >= (6 if kernel is GemmAllReduce else 20)


def test_every_mutant_of_the_drivers_is_noticed():
    """The end of a call, which the template adds to every kernel that communicates."""
    alive, count = mutation.survivors(drivers, mutation.drives(GemmAllReduce), play, TRIES, print, {"pieces"})
    assert not alive, "\n".join(alive)
    assert count == 4
