"""SplitGemm: exact results for every cluster and shape, the same bits each time, and every synchronising line needed."""

import importlib

import numpy as np
import pytest

from pknumba import World, gemm
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.errors import ConfigError
from pknumba.kernels import Gemm
from pknumba.kernels.split_gemm import SplitGemm

from . import harness, mutation
from .products import assert_close, matrix

TRIES = 12
#: Several tiles for each cluster; less depth than blocks; edges everywhere; a single element.
SHAPES = [(40, 72, 100), (32, 64, 16), (17, 33, 131), (1, 1, 1)]


def split(n=0, **changes):
    """The n-th toy configuration."""
    fields = dict(split_k=True, cluster=(2, 4, 3)[n % 3], consumers=1 + n % 2, b_transposed=n % 4 > 0, stages=2 + n % 2, c_stages=1 + n % 2)
    return harness.toy(SplitGemm, **{**fields, **changes})


@pytest.mark.parametrize("n", range(12))
def test_every_configuration(n):
    """Two calls in a row; clusters take tiles one after the other, or there are more clusters than tiles."""
    for i, shape in enumerate(SHAPES):
        harness.run(SplitGemm, split(n), 1, *shape, sms=(4, 9, 30)[(n + i) % 3], **harness.schedule(n + 5 * i))


@pytest.mark.parametrize("cluster, sharers", [(5, 4), (6, 4), (7, 4), (8, 8)])
def test_large_clusters(cluster, sharers):
    """As many blocks sum as divide the columns; the others only multiply."""
    cfg = split(cluster=cluster, tile_n=128, stages=4)
    assert cfg.sharers == sharers
    harness.run(SplitGemm, cfg, 1, 30, 200, 300, sms=2 * cluster, seed=cluster)


def test_every_mutant_is_noticed():
    module = importlib.import_module(SplitGemm.__module__)

    def play(kernel, n):
        harness.run(kernel, split(n), 1, 40, 72, 70, sms=4, calls=2, max_switches=200_000, **harness.schedule(n))

    alive, count = mutation.survivors(module, lambda m: m.SplitGemm, play, TRIES, report=print)
    assert not alive, "\n".join(alive)
    assert count >= 12


def test_the_operator_chooses_the_kernel():
    """Through the public function: a real tile, whose depth three blocks fill and one does not."""
    cfg = GemmConfig(tile_m=64, tile_n=64, consumers=1, stages=4, c_stages=1, cluster=4, split_k=True)
    assert Gemm.for_config(cfg) is SplitGemm and Gemm.for_config(GemmConfig()) is Gemm
    rng = np.random.default_rng(0)
    a, b = matrix(rng, (70, 400), "bfloat16"), matrix(rng, (400, 100), "bfloat16")
    with World.local(1, executor="interpreter") as world:
        first, again = (gemm(world, a, b, config=cfg) for _ in range(2))
    assert_close(first, [(a, b)], "bfloat16")
    assert np.array_equal(first.view(np.uint16), again.view(np.uint16)), "sums are made in one order"


@pytest.mark.parametrize("make, words", [
    (lambda: GemmConfig(split_k=True), ("cluster = 1 with split_k",)),
    (lambda: GemmConfig(split_k=True, cluster=9), ("cluster = 9 with split_k", "eight")),
    (lambda: GemmConfig(split_k=True, cluster=2), ("128 x 256", "262144 bytes", "196608")),
    (lambda: GemmConfig(split_k=True, cluster=2, ping_pong=True, tile_n=128, stages=6), ("split_k with ping_pong",)),
    (lambda: GemmAllReduceConfig(split_k=True, cluster=2, tile_n=128, stages=5), ("split_k",))])
def test_refused_configurations(make, words):
    with pytest.raises(ConfigError) as found:
        make().check()
    assert all(word in str(found.value) for word in words), found.value
