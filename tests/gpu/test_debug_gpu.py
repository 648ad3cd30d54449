"""Debug builds on a real GPU: right kernels pass, wrong ones are a typed error that names the line of the first violation."""

import inspect

import ml_dtypes
import numpy as np
import pytest

from pknumba import Gemm, GemmConfig, World, all_gather, all_reduce, attention, gemm, gemm_all_reduce
from pknumba.errors import ProtocolError
from pknumba.primitives import arrive, ring, store_async, store_async_read_wait, wait
from pknumba.runtime import driver
from pknumba.templates import multiply

from .arrays import to_numpy

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]
CFG = GemmConfig(tile_m=128, tile_n=128, stages=3, c_stages=1)


@pytest.fixture(autouse=True)
def debug(monkeypatch):
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")


class RowBefore(Gemm):
    """Stores to the row of tiles before."""

    @staticmethod
    def storer(cfg, g, s, task):
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage], phase)
            store_async(g.C, (task.row - 1, task.col * cfg.panels + p), s.c[stage])     # wrong
            store_async_read_wait(0)
            arrive(s.c_empty[stage])


class WrongStage(Gemm):
    """Waits for a semaphore that the ring does not have."""

    @staticmethod
    def storer(cfg, g, s, task):
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage + 1], phase)                                            # wrong
            store_async(g.C, (task.row, task.col * cfg.panels + p), s.c[stage])
            store_async_read_wait(0)
            arrive(s.c_empty[stage])


class TailSkipped(Gemm):
    """The last panel of a tile is not stored."""

    @staticmethod
    def storer(cfg, g, s, task):
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage], phase)
            if p < cfg.panels - 1:
                store_async(g.C, (task.row, task.col * cfg.panels + p), s.c[stage])
            store_async_read_wait(0)
            arrive(s.c_empty[stage])


def test_right_attention_passes():
    with World.local(1, executor="gpu", wait_limit_s=10) as world:
        q, k, v = (world.asarray(np.ones((2, 4, 100, 64), ml_dtypes.bfloat16)) for _ in range(3))
        assert (to_numpy(attention(world, q, k, v, causal=True)[0]) == 1).all()


def ones(world, m, n, k):
    return [world.asarray(np.ones(shape, ml_dtypes.bfloat16)) for shape in ((m, k), (k, n))]


def wrong_line(kernel):
    lines, first = inspect.getsourcelines(kernel)
    return first + next(i for i, line in enumerate(lines) if "# wrong" in line)


@pytest.mark.parametrize("m, n, k", [(128, 128, 64), (300, 264, 200), (65, 72, 8), (100, 7, 33)])
def test_right_kernels_pass(m, n, k):
    with World.local(1, executor="gpu", wait_limit_s=10) as world:
        A, B = ones(world, m, n, k)
        assert (to_numpy(gemm(world, A, B)) == k).all()

    def main(world):
        A, B = ones(world, m, n, k)
        C = gemm_all_reduce(world, A, B)
        world.synchronize()
        return to_numpy(C)

    with World.local(2, executor="gpu", wait_limit_s=10) as world:
        assert all((C == 2 * k).all() for C in world.run(main))


def test_right_collectives_pass():
    def main(world):
        x = world.asarray(np.full((30, 7), world.rank + 1, np.float32))
        y, z = all_gather(world, x), all_reduce(world, x)
        world.synchronize()
        return to_numpy(y), to_numpy(z)

    with World.local(2, executor="gpu", wait_limit_s=10) as world:
        for y, z in world.run(main):
            assert y.shape == (60, 7) and (y[:30] == 1).all() and (y[30:] == 2).all() and (z == 3).all()


@pytest.mark.parametrize("kernel, text", [(RowBefore, r"first row of a window of C is -128; it must be from 0 to \d+"),
                                          (WrongStage, "index of semaphore c_full is 1; it must be from 0 to 0")])
def test_the_first_violation_is_named(kernel, text):
    world = World.local(1, executor="gpu", wait_limit_s=10)
    where = f"{kernel.__name__}: rank 0 block \\d+ storer at test_debug_gpu.py:{wrong_line(kernel)}"
    with pytest.raises(ProtocolError, match=f"{where}: {text}"):
        multiply(kernel, world, *ones(world, 300, 264, 200), out=None, config=CFG, stream=None)
    world.close()


def test_elements_that_nobody_writes_are_found():
    world = World.local(1, executor="gpu", wait_limit_s=10)
    with pytest.raises(ProtocolError, match=r"TailSkipped: \d+ elements of the result were never written, the first at \[0, 64\]"):
        multiply(TailSkipped, world, *ones(world, 300, 264, 200), out=None, config=CFG, stream=None)
    world.close()
