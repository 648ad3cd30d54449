"""GemmAllReduce on the interpreter: exact sums on every rank, for any world, with calls in a row and no barrier between them."""

import pytest

from pknumba.kernels import GemmAllReduce

from . import harness

VARIANTS = harness.variants(GemmAllReduce)
WORLDS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("world", WORLDS)
def test_seeds(world, seed):
    """A configuration, a shape, a policy and a way of completing for each seed; another rank is late each time."""
    shape = harness.SHAPES[(5 * seed + world) % len(harness.SHAPES)]
    cfg = VARIANTS[(seed * 7 + world) % len(VARIANTS)].replace(comm_sms=1 + seed % 2, piece_m=(1, 2, 4, 8)[seed % 4])
    skew = 40 * (seed % 2)
    harness.run(GemmAllReduce, cfg, world, *shape, sms=3 + seed % 3, warps=1 + seed % 4, skew=skew, **harness.schedule(seed))


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_every_configuration(number):
    harness.run(GemmAllReduce, VARIANTS[number], 2, *harness.SHAPES[number % 8], seed=number, skew=30)


@pytest.mark.parametrize("world", [2, 3])
def test_short_loops_in_turns(world):
    for seed in range(12):
        cfg = harness.toy(GemmAllReduce, ping_pong=True, c_stages=1 + seed % 4, stages=2 + seed % 3)
        harness.run(GemmAllReduce, cfg, world, 32, 64, 16 * (1 + seed % 2), sms=3, **harness.schedule(seed))


@pytest.mark.parametrize("world, policy, completion", [(3, "starve", "late"), (2, "pct", "random")])
def test_fifty_calls(world, policy, completion):
    """New values in the same arrays, ranks late in turn, no barrier: a missing hand-over spoils some call."""
    cfg = harness.toy(GemmAllReduce)
    harness.run(GemmAllReduce, cfg, world, 20, 40, 20, calls=50, skew=60, policy=policy, completion=completion)


def test_fewer_tasks_than_ranks():
    """Ranks that own nothing still take part in the end of a call."""
    for seed in range(4):
        harness.run(GemmAllReduce, harness.toy(GemmAllReduce, comm_sms=2), 8, 3, 5, 7, calls=3, **harness.schedule(seed))
