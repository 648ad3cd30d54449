"""Every line of the collectives and of the handshake around them matters: without it, or with it bent, the interpreter notices."""

import importlib

import pytest

from pknumba import kernels
from pknumba.templates import comm, communicate

from .astray import survivors
from .collectives import KINDS, TOY, play, schedule
from .test_all_reduce import reduced

TRIES = 12


def all_reduce(algorithm):
    """A try of the kernel, with every combination of arrays, several calls, ranks late in turn."""
    def run(kernel, n):
        kinds = KINDS[n % 2], ("none", *KINDS)[n // 2 % 3]
        config = TOY.replace(algorithm=algorithm)
        play(2 + n % 2, lambda world, x, out: communicate(kernel, world, x, out, config, None, op="sum"), reduced("sum"), (700,),
             kinds=kinds, skew=40, calls=3, max_switches=200_000, **schedule(n))
    return run


#: Class that is mutated -> (its module, the kernel that is called, function (kernel, n) that plays the n-th try, mutants at least).
KERNELS = {"AllReduce": ("all_reduce", "AllReduce", all_reduce("two-shot"), 7),
           "OneShot": ("all_reduce", "AllReduce", all_reduce("one-shot"), 6)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_of_a_kernel_is_noticed(name):
    home, public, run, least = KERNELS[name]
    module = importlib.import_module(f"{kernels.__name__}.{home}")
    alive, count = survivors(module, name, lambda m: getattr(m, public), run, TRIES)
    assert not alive, "\n".join(alive)
    assert count >= least


@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver, algorithm", [("exchange", "two-shot"), ("counted", "one-shot")])
def test_every_mutant_of_the_handshake_is_noticed(driver, algorithm):
    chosen = kernels.AllReduce if driver == "exchange" else importlib.import_module(f"{kernels.__name__}.all_reduce").OneShot

    def make(module):
        drive = getattr(module, driver)

        class Driven(chosen):
            @classmethod
            def variant(kernel, call, cfg):
                return kernel, cfg

            @classmethod
            def driver(kernel, role):
                return lambda play, _: drive(kernel, play) if driver == "exchange" else drive(play)
        return Driven

    alive, count = survivors(comm, driver, make, all_reduce(algorithm), TRIES)
    assert not alive, "\n".join(alive)
    assert count >= (3 if driver == "counted" else 13)
