"""Gemm whose consumers store by themselves: exact results, and every synchronising line needed."""

import importlib

import numpy as np
import pytest

from pknumba import World, gemm
from pknumba.config import GemmAllReduceConfig, GemmConfig, GroupedGemmConfig
from pknumba.errors import ConfigError
from pknumba.kernels import Gemm
from pknumba.kernels.direct_gemm import DirectGemm, DirectSlicedGemm
from pknumba.templates import multiply

from . import harness, mutation
from .products import assert_close, matrix

TRIES = 12


def direct(n=0, **changes):
    """The n-th toy configuration."""
    consumers, ping_pong = ((2, False), (2, True), (1, False), (3, False))[n % 4]
    fields = dict(direct=True, consumers=consumers, ping_pong=ping_pong, tile_m=24 if consumers == 3 else 16, b_transposed=n % 3 > 0,
                  stages=3 + n % 2, c_stages=1 + n % 3, ahead=n % 5, group_m=2, cluster=1 + n // 4 % 2)
    return harness.toy(DirectGemm, **{**fields, **changes})


@pytest.mark.parametrize("n", range(12))
def test_every_configuration(n):
    """Two calls in a row; more tiles than SMs, and fewer."""
    for i in range(4):
        m, k, cols = ((40, 50, 72), (17, 131, 33), (1, 1, 1), (64, 32, 96))[(n + i) % 4]
        harness.run(DirectGemm, direct(n), 1, m, cols, k, sms=(2, 5, 30)[(n + i) % 3], **harness.schedule(n + 5 * i))


@pytest.mark.parametrize("n", range(6))
def test_in_slices(n):
    cfg = direct(n, slices=(2, 4)[n % 2], ping_pong=False, consumers=1 + n % 2, tile_m=16, cluster=1 + n // 2 % 2)
    harness.run(DirectSlicedGemm, cfg, 1, 40, 72, 100, sms=(8, 20)[n % 2], **harness.schedule(n))


def test_every_mutant_is_noticed():
    module, own = importlib.import_module(Gemm.__module__), importlib.import_module(DirectGemm.__module__)

    def play(kernel, n):
        harness.run(kernel, direct(n, cluster=1), 1, calls=3, max_switches=200_000, **harness.schedule(n))

    def made(mutant):
        """DirectGemm on the mutant's main loop."""
        class Direct(DirectGemm):
            loader = staticmethod(mutant.Gemm.loader)

            @staticmethod
            def consumer(cfg, g, s, task):
                DirectGemm.outward(cfg, g, s, task, mutant.Gemm.product(cfg, g, s, task))
        return Direct

    alive, count = mutation.survivors(module, made, play, TRIES, print, {"ready", "product"})
    assert not alive, "\n".join(alive)
    assert count >= 10
    assert mutation.survivors(own, lambda m: m.DirectGemm, play, 1) == ([], 0), "what a consumer stores is its own: nobody is waited for"


@pytest.mark.parametrize("changes", [{}, dict(ping_pong=True), dict(slices=2), dict(cluster=2)], ids=str)
def test_the_operator_chooses_the_kernel(changes):
    """Real tiles through the public function, with edges inside panels."""
    cfg = GemmConfig(tile_m=128, tile_n=64, stages=4, c_stages=1, direct=True, ahead=2, **changes)
    assert Gemm.for_config(cfg) is (DirectSlicedGemm if cfg.slices > 1 else DirectGemm)
    rng = np.random.default_rng(0)
    a, b = matrix(rng, (150, 400), "bfloat16"), matrix(rng, (400, 104), "bfloat16")
    with World.local(1, executor="interpreter") as world:
        assert_close(gemm(world, a, b, config=cfg), [(a, b)], "bfloat16")
        assert np.array_equal(gemm(world, a, b, config=cfg).view(np.uint16), gemm(world, a, b, config=cfg.replace(direct=False, ahead=0)).
                              view(np.uint16)), "the same sums, rounded in the same way"


@pytest.mark.parametrize("make, words", [
    (lambda: GemmConfig(ahead=-1), ("ahead = -1", "0 at least")),
    (lambda: GemmConfig(direct=True, dtype="float32", tile_k=32), ("direct = True of float32",)),
    (lambda: GemmAllReduceConfig(ahead=1), ("ahead = 1 with direct = False",)),
    (lambda: GroupedGemmConfig(direct=True), ("direct = True", "copy engine"))])
def test_refused_configurations(make, words):
    with pytest.raises(ConfigError) as found:
        make().check()
    assert all(word in str(found.value) for word in words), found.value


class Halved(Gemm):
    """Half of A @ B: Gemm with another end."""

    @staticmethod
    def consumer(cfg, g, s, task):
        Gemm.panels(cfg, g, s, task, Gemm.product(cfg, g, s, task) * 0.5)


def test_what_extends_gemm_keeps_its_end():
    """Few tiles and a long sum, for which gemm would choose slices: nothing that another kernel plays is chosen, and none is taken."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype("float16") for shape in ((64, 4096), (4096, 64)))
    with World.local(1, executor="interpreter", num_sms=132) as world:
        whole, half = gemm(world, a, b), multiply(Halved, world, a, b, None, None, None)
        assert np.array_equal(half, (a.astype(np.float32) @ b.astype(np.float32) / 2).astype(np.float16)) and whole.any()
        for cfg in (GemmConfig(direct=True), GemmConfig(tile_n=128, slices=2)):
            with pytest.raises(ConfigError, match="Halved: .*Use slices = 1 and direct = False"):
                multiply(Halved, world, a, b, None, cfg, None)
