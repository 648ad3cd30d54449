"""Gemm on the interpreter: exact results over configurations, shapes with tails at every edge, seeds, policies, completions."""

import pytest

from pknumba.kernels import Gemm

from . import harness

VARIANTS = harness.variants(Gemm)


def name(cfg):
    """A variant in a few letters."""
    how = "turns" if cfg.ping_pong else f"{cfg.consumers}together"
    return f"{how}-{'nk' if cfg.b_transposed else 'kn'}-{cfg.stages}stages-{cfg.c_stages}panels"


@pytest.mark.parametrize("number", range(len(VARIANTS)), ids=[name(v) for v in VARIANTS])
def test_every_configuration(number):
    """Two seeds and shapes for each; two calls in a row; more tiles than SMs."""
    for i in range(2):
        m, n, k = harness.SHAPES[(number + 3 * i) % len(harness.SHAPES)]
        harness.run(Gemm, VARIANTS[number], 1, m, n, k, sms=2 + i, **harness.schedule(number + 7 * i))


@pytest.mark.parametrize("shape", harness.SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_every_shape(shape):
    for number in range(0, len(VARIANTS), 3):
        harness.run(Gemm, VARIANTS[number], 1, *shape, **harness.schedule(number))


@pytest.mark.parametrize("seed", range(25))
def test_short_loops_in_turns(seed):
    """Main loops of one to three steps, over before the other consumer's panels are out: several tiles a block, small rings."""
    cfg = harness.toy(Gemm, ping_pong=True, c_stages=1 + seed % 4, stages=2 + seed % 3)
    harness.run(Gemm, cfg, 1, 64, 96, 16 * (1 + seed % 3), sms=2 + seed % 2, **harness.schedule(seed))


@pytest.mark.parametrize("changes", [{}, dict(ping_pong=True), dict(cluster=2, group_m=4, b_transposed=False)], ids=str)
def test_columns_that_begin_at_different_depths(changes):
    """More columns of tiles than steps, fewer, and one step."""
    for i, shape in enumerate([(40, 200, 50), (40, 40, 130), (20, 70, 8)]):
        harness.run(Gemm, harness.toy(Gemm, stagger=True, **changes), 1, *shape, **harness.schedule(i))


@pytest.mark.parametrize("sms", [1, 3, 50])
def test_any_number_of_sms(sms):
    """One block plays every task, or there are more SMs than tasks."""
    for ping_pong in (False, True):
        harness.run(Gemm, harness.toy(Gemm, ping_pong=ping_pong), 1, 40, 72, 50, sms=sms, seed=sms)


def test_ranks_do_not_meet():
    """Gemm communicates nothing: every rank of a world has its own product."""
    harness.run(Gemm, harness.toy(Gemm), 3, calls=3, skew=50)


@pytest.mark.parametrize("ping_pong", [False, True])
def test_fifty_calls(ping_pong):
    harness.run(Gemm, harness.toy(Gemm, ping_pong=ping_pong), 1, 20, 40, 40, calls=50, policy="starve", completion="late")
