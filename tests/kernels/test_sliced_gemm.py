"""SlicedGemm: exact results for every number of slices, the same bits each time, and every synchronising line needed."""

import importlib

import numpy as np
import pytest

from pknumba import World, gemm
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.errors import ConfigError
from pknumba.kernels import Gemm
from pknumba.kernels.sliced_gemm import SlicedGemm

from . import harness, mutation
from .products import assert_close, matrix

TRIES = 12
#: Several tiles for each block; less depth than slices; edges everywhere; a single element.
SHAPES = [(40, 72, 100), (32, 64, 16), (17, 33, 131), (1, 1, 1)]


def sliced(n=0, **changes):
    """The n-th toy configuration."""
    fields = dict(slices=(2, 4, 8)[n % 3], consumers=1 + n % 2, b_transposed=n % 4 > 0, stages=2 + n % 2, c_stages=1 + n % 2,
                  stagger=n % 4 < 2)
    return harness.toy(SlicedGemm, **{**fields, **changes})


@pytest.mark.parametrize("n", range(12))
def test_every_configuration(n):
    """Two calls in a row; blocks take tiles one after the other, or there are more of them than tasks."""
    for i, shape in list(enumerate(SHAPES))[n % 2::2]:
        harness.run(SlicedGemm, sliced(n), 1, *shape, sms=(8, 9, 30)[(n + i) % 3], **harness.schedule(n + 5 * i))


@pytest.mark.parametrize("n", range(8))
def test_in_clusters(n):
    """Blocks of a cluster have the same slice of tiles above each other: also where the last row of tiles has no mate."""
    for i, shape in enumerate(SHAPES):
        harness.run(SlicedGemm, sliced(n, cluster=2, group_m=2, slices=2 + 2 * (n % 2)), 1, *shape, sms=(8, 17, 30)[(n + i) % 3],
                    **harness.schedule(n + 5 * i))


@pytest.mark.parametrize("slices, sharers", [(4, 4), (8, 8), (16, 8)])
def test_many_slices(slices, sharers):
    """As many blocks sum as divide the columns; the others only multiply."""
    cfg = sliced(slices=slices, tile_n=128, stages=4)
    assert cfg.sharers == sharers
    harness.run(SlicedGemm, cfg, 1, 30, 200, 300, sms=2 * slices, seed=slices)


def test_every_mutant_is_noticed():
    module = importlib.import_module(SlicedGemm.__module__)

    def play(kernel, n):
        harness.run(kernel, sliced(n, slices=2 + 2 * (n % 2)), 1 + n % 2, 40, 40, 70, sms=4, calls=2, max_switches=200_000,
                    **harness.schedule(n))

    alive, count = mutation.survivors(module, lambda m: m.SlicedGemm, play, TRIES, report=print)
    assert (alive, count) == ([], 0), "its stages are Gemm's, and what is left for others needs no line: every word is its own flag"


def test_the_operator_chooses_the_kernel():
    """Through the public function, on one rank of several too: a real tile, whose depth two slices fill and two do not."""
    cfg = GemmConfig(tile_m=64, tile_n=64, consumers=1, stages=4, c_stages=1, slices=4)
    assert Gemm.for_config(cfg) is SlicedGemm and Gemm.for_config(GemmConfig()) is Gemm
    rng = np.random.default_rng(0)
    a, b = matrix(rng, (70, 400), "bfloat16"), matrix(rng, (400, 100), "bfloat16")
    with World.local(1, executor="interpreter") as world:
        first, again = (gemm(world, a, b, config=cfg) for _ in range(2))
    assert_close(first, [(a, b)], "bfloat16")
    assert np.array_equal(first.view(np.uint16), again.view(np.uint16)), "sums are made in one order"
    alone = World.local(3, executor="interpreter").run(lambda world: gemm(world, a, b, config=cfg) if world.rank == 1 else None)
    assert np.array_equal(alone[1].view(np.uint16), first.view(np.uint16)), "no other rank need call"


@pytest.mark.parametrize("make, words", [
    (lambda: GemmConfig(slices=0), ("slices = 0", "power of two")),
    (lambda: GemmConfig(slices=2, ping_pong=True, tile_n=128), ("slices = 2 with ping_pong",)),
    (lambda: GemmConfig(slices=2, tile_m=256, tile_n=192, stages=3), ("slices = 2 of a tile 256 x 192", "128 sums", "not for 192")),
    (lambda: GemmAllReduceConfig(slices=2), ("slices = 2", "Use GemmConfig"))])
def test_refused_configurations(make, words):
    with pytest.raises(ConfigError) as found:
        make().check()
    assert all(word in str(found.value) for word in words), found.value


def test_blocks_that_share_a_tile_run_at_once():
    a = np.zeros((64, 64), np.float16)
    with World.local(1, executor="interpreter", num_sms=3) as world, pytest.raises(ConfigError, match="slices = 4, but a rank has 3 SMs"):
        gemm(world, a, a, config=GemmConfig(tile_m=64, tile_n=64, consumers=1, slices=4, dtype="float16"))
