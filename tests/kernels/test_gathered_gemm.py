"""GatheredGemm on the interpreter: exact results over configurations, groups of every kind, seeds; every mutant noticed; and what it is
in a dispatch of one rank."""

import importlib

import numpy as np
import pytest

from pknumba import MoeConfig, World, moe_dispatch_gemm, moe_layer
from pknumba.checking import play
from pknumba.checking.groups import GROUPS, ToyGathered, gathered_product
from pknumba.checking.toys import SMALL
from pknumba.config import ExpertConfig
from pknumba.kernels import GatheredGemm, GroupedGemm
from pknumba.tiles import Semaphore

from . import harness, mutation
from .experts import Problem, routed
from .products import assert_close

FIELDS = "consumers ping_pong b_transposed stages tile_m c_stages group_m".split()
VARIANTS = [ToyGathered(**SMALL).replace(activation=("none", "relu")[i % 2], **{f: getattr(v, f) for f in FIELDS})
            for i, v in enumerate(harness.variants(GroupedGemm))]


def run(cfg, number, sms=3, calls=2, seed=0, **options):
    """Problem ``number`` under that schedule."""
    toy = gathered_product(GatheredGemm, cfg, *GROUPS[number % len(GROUPS)], top_k=1 + number % 4, sms=sms)
    return play(GatheredGemm, toy, 1, calls, seed, **options)


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_every_configuration(number):
    for i in range(2):
        run(VARIANTS[number], number + 3 * i, 2 + i, **harness.schedule(number + 7 * i))


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_every_problem(number):
    """Empty groups, one that holds everything, groups that end within a tile, rows of no group, depths that no stage divides."""
    for i in range(0, len(VARIANTS), 5):
        run(VARIANTS[i], number, 1 + number % 5, calls=3, **harness.schedule(number + i))


def test_what_is_declared():
    """Both roles complete a stage; the device counts the loader and two warps."""
    declared = GatheredGemm.shared(ExpertConfig())
    assert declared.ab_full == Semaphore(4, by="loader, gatherer") and declared.ab_full.complete(GatheredGemm.roles(ExpertConfig())) == 3


def play_mutant(kernel, n):
    """The n-th try of a mutant."""
    cfg = VARIANTS[(0, 6, 1, 7, 2, 11)[n % 6]].replace(c_stages=1 + n % 3)
    toy = gathered_product(kernel, cfg, *GROUPS[(4, 6, 1)[n % 3]], sms=2)
    play(kernel, toy, 1, 3, max_switches=200_000, **harness.schedule(n))


def test_every_mutant_is_noticed():
    module = importlib.import_module("pknumba.kernels.gathered_gemm")
    alive, count = mutation.survivors(module, lambda m: m.GatheredGemm, play_mutant, 12, report=print)
    assert not alive, "\n".join(alive)
    assert count >= 20


@pytest.mark.parametrize("top_k, h", [(1, 64), (2, 63), (8, 136), (3, 5)])
def test_dispatch_of_one_rank(top_k, h):
    """Rows of tokens where they are, in the order of experts; some entries are no expert's; nothing is kept beside the tables."""
    problem = Problem(top_k, 1, 40, top_k, 6, h, 24, 32)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(0)
        for _ in range(2):
            Y, routes = moe_dispatch_gemm(world, x, indices, w1, experts=6)
            rows, ends, _ = routed(problem.x, problem.indices, 6, 0)
            assert np.array_equal(routes.ends, ends)
            for e, (start, end) in enumerate(zip((0, *ends), ends)):
                assert_close(Y[start:end], [(rows[start:end], w1[e])], "bfloat16", f"expert {e}")
        kept = [v for v in world.cache.values() if hasattr(v, "counters")]
        assert not [v for v in kept if hasattr(v, "memory")]

    World.local(1, executor="interpreter", num_sms=5).run(main)


def test_tables_of_one_rank():
    """Nothing for anybody, one expert for all, more slots than there is room for, no token at all, deeper stages, rows of a wider array."""
    def main(world):
        for table in (np.full((16, 2), -1), np.full((16, 2), 1), np.arange(32).reshape(16, 2) % 5 - 1):
            problem = Problem(1, 1, 16, 2, 4, 24, 16, 24, exact=True)
            problem.indices = [table.astype(np.int32)]
            x, indices, weights, w1, w2 = problem.mine(0)
            wide = np.full((16, 40), np.nan, x.dtype)
            wide[:, 8:32] = x
            for config in (None, MoeConfig(tile_m=64, tile_n=16, tile_k=128, stages=3, consumers=1)):
                out = moe_layer(world, wide[:, 8:32], indices, weights, w1, w2, activation="relu", config=(config, None))
                problem.check(0, out, "relu")
        Y, routes = moe_dispatch_gemm(world, x, np.full((16, 2), 1, np.int32), w1, capacity=20)
        assert list(routes.ends) == [0, 20, 20, 20] and (routes.place.ravel() == [*range(20), *[-1] * 12]).all()
        out = moe_layer(world, x[:0], indices[:0], weights[:0], w1, w2, tokens=16)
        assert out.shape == (0, 24)

    World.local(1, executor="interpreter", num_sms=3, policy="starve").run(main)
