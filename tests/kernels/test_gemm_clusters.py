"""Gemm in clusters of two blocks: exact results, both blocks of a pair in step, and every rule of clusters kept or refused."""

import importlib

import numpy as np
import pytest

from pknumba import World, gemm
from pknumba.config import AllGatherGemmConfig, GemmAllReduceConfig, GemmConfig, GemmReduceScatterConfig
from pknumba.errors import ConfigError, ContractError, ProtocolError, RaceError
from pknumba.kernels import Gemm
from pknumba.templates import LCS
from pknumba.tiles import Semaphore

from . import harness, mutation
from .products import matrix

TRIES = 12
#: Whole pairs of tile rows; a last row without a mate; one tile; more columns than rows; a deep main loop.
SHAPES = [(64, 64, 32), (80, 72, 50), (1, 1, 1), (15, 130, 33), (97, 40, 100)]


def cluster(n=0, **changes):
    """The n-th toy configuration in clusters."""
    consumers, ping_pong = ((2, False), (2, True), (1, False), (3, False))[n % 4]
    fields = dict(cluster=2, consumers=consumers, ping_pong=ping_pong, tile_m=24 if consumers == 3 else 16, b_transposed=n % 3 > 0,
                  stages=2 + n % 3, c_stages=1 + n % 4, group_m=2 + 2 * (n % 2))
    return harness.toy(Gemm, **{**fields, **changes})


@pytest.mark.parametrize("n", range(12))
def test_every_configuration(n):
    """Two calls in a row; pairs of blocks wait for room, or there are more of them than pairs of tiles."""
    for i, shape in enumerate(SHAPES):
        harness.run(Gemm, cluster(n), 1, *shape, sms=(2, 5, 8)[(n + i) % 3], **harness.schedule(n + 5 * i))


def test_blocks_of_a_cluster_start_together():
    """Five SMs hold two clusters; the rest of the grid follows pair by pair."""
    session = harness.run(Gemm, cluster(), 1, 160, 96, 32, sms=5, trace="order")
    assert session.switches > 0


class OwnBlockOnly(Gemm):
    """Gives a stage back to its own block alone."""

    @staticmethod
    def shared(cfg):
        return Gemm.shared(cfg)._replace(ab_empty=Semaphore(cfg.stages, by="consumer"))


def test_a_stage_given_back_to_one_block():
    for n in range(TRIES):
        with pytest.raises((RaceError, ProtocolError), match="rows"):
            harness.run(OwnBlockOnly, cluster(n), 1, 96, 96, 100, **harness.schedule(n))


class LeavesAtOnce(Gemm):
    """Does not wait for what the other block of the cluster gives back last."""

    @staticmethod
    def emptied(cfg, g, s, step):
        pass


def test_a_block_that_leaves_before_its_mate_is_done():
    for n in range(TRIES):
        with pytest.raises(ProtocolError, match="consumer.* may arrive, at gemm.py:.*, when the block has left"):
            harness.run(LeavesAtOnce, cluster(n), 1, 96, 96, 100, **harness.schedule(n))


class Unaware(LCS):
    """A kernel whose author knew of no clusters."""

    config = GemmConfig
    shared, loader, consumer, storer = map(staticmethod, (Gemm.shared, Gemm.loader, Gemm.consumer, Gemm.storer))


def test_a_kernel_that_does_not_say_when_it_is_empty():
    with pytest.raises(ContractError, match=r"Unaware: cluster = 2, and no emptied\(cfg, g, s, step\)"):
        Unaware.plan(GemmConfig(cluster=2))


class Announced(Gemm):
    """Announces its bytes on semaphores of the whole cluster."""

    @staticmethod
    def shared(cfg):
        return Gemm.shared(cfg)._replace(ab_full=Semaphore(cfg.stages, by="loader", of="cluster"))


def test_bytes_on_a_cluster():
    with pytest.raises(ContractError, match="ab_full.* is declared of=\"cluster\", loader may not expect bytes"):
        harness.run(Announced, cluster(), 1, 40, 40, 40)
    from pknumba.lowering.entry import to_ptx
    with pytest.raises(ContractError, match="loader: expects bytes on ab_full"):
        to_ptx(Announced.plan(GemmConfig(cluster=2)))


def test_every_mutant_is_noticed():
    module = importlib.import_module(Gemm.__module__)

    def play(kernel, n):
        cfg = cluster(n, consumers=2, tile_m=16, ping_pong=n % 2 == 1)
        harness.run(kernel, cfg, 1, 80, 96, (50, 16)[n % 2], calls=2, max_switches=200_000, **harness.schedule(n))

    alive, count = mutation.survivors(module, lambda m: m.Gemm, play, TRIES, report=print)
    assert not alive, "\n".join(alive)
    assert count >= 20


@pytest.mark.parametrize("make, words", [
    (lambda: GemmConfig(cluster=3, group_m=12), ("cluster = 3", "1 or 2 or 4")), (lambda: GemmConfig(cluster=0), ("cluster = 0",)),
    (lambda: GemmConfig(cluster=2, group_m=9), ("group_m = 9", "clusters of 2")),
    (lambda: GemmConfig(cluster=2.0), ("cluster = 2.0", "int")),
    (lambda: GemmAllReduceConfig(cluster=2), ("cluster = 2",)), (lambda: GemmReduceScatterConfig(cluster=2), ("cluster = 2",)),
    (lambda: AllGatherGemmConfig(cluster=2), ("cluster = 2",))])
def test_refused_configurations(make, words):
    with pytest.raises(ConfigError) as found:
        make().check()
    assert all(word in str(found.value) for word in words), found.value


def test_one_sm_holds_no_cluster():
    rng = np.random.default_rng(0)
    with World.local(1, executor="interpreter", num_sms=1) as world:
        a, b = matrix(rng, (16, 16), "bfloat16"), matrix(rng, (16, 16), "bfloat16")
        with pytest.raises(ConfigError, match="cluster = 2, but a rank has 1 SM"):
            gemm(world, a, b, config=GemmConfig(cluster=2))
