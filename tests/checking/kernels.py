"""Wrong kernels for tests of the checker, one bug each, and a right one with a toy problem of its own."""

import numpy as np

from pknumba.checking import Toy
from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.primitives import (accumulator, arrive, expect, fence_async, load_async, mma, mma_wait, ring, signal, store,
                                store_async, store_async_read_wait, store_async_wait, turn_pass, turn_wait, wait)
from pknumba.templates import LCS
from pknumba.tiles import Config, Role, Semaphore, Tile, shared


class Hasty(GemmAllReduce):
    """Signals before its tile is written."""

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        signal(g.done, task.id, task.owner)


class Silent(GemmAllReduce):
    """Does not signal the first tile."""

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        if task.id > 0:
            signal(g.done, task.id, task.owner)


class Swapped(Gemm):
    """Stores its tile in the place of its neighbour: no race, a wrong result."""

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task._replace(col=(task.col + 1) % g.grid[1]))


class Twice(GemmAllReduce):
    """A line too many: nothing is wrong, and nobody can notice when one of the two is gone."""

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        store_async_wait(0)
        signal(g.done, task.id, task.owner)


class Lapped(Gemm):
    """The consumer as it was before docs/decisions/0004: in turns, and nothing orders the entry into the ring of panels."""

    @staticmethod
    def consumer(cfg, g, s, task):
        acc = accumulator(cfg.part_m, cfg.tile_n)
        turn_wait(s, task.turn)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_full[stage], phase)
            acc = mma(acc, s.a[stage, task.part], s.b[stage], k > 0, cfg.b_transposed)
            acc = mma_wait(acc, 0)
            arrive(s.ab_empty[stage])
        turn_pass(s, task.turn)
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_empty[stage], phase ^ 1)
            store(s.c[stage, task.part], acc, p)
            fence_async(s.c[stage, task.part])
            arrive(s.c_full[stage])


class _CopyConfig(Config):
    runtime = ()
    ping_pong, consumers, tile, dtype = False, 1, (8, 8), "float32"


class Copy(LCS):
    """Y = X, tile by tile through shared memory: a kernel that is no product."""

    config, tensors, numbers = _CopyConfig, ("X", "Y"), {"grid": 2, "tasks": 1}

    @classmethod
    def roles(kernel, cfg):
        return {"loader": Role("loader"), "consumer": Role("consumer", "warpgroup"), "storer": Role("storer")}

    @staticmethod
    def steps(cfg, g, number):
        return 1

    @staticmethod
    def shared(cfg):
        return shared(x=Tile((2, *cfg.tile), "float32", 32), full=Semaphore(2, by="loader"), empty=Semaphore(2, by="storer"))

    @staticmethod
    def loader(cfg, g, s, task):
        stage, phase = ring(task.turn, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (task.id, 0), s.full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):
        """Nothing to do."""

    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, 2)
        wait(s.full[stage], phase)
        store_async(g.Y, (task.id, 0), s.x[stage])
        store_async_read_wait(0)
        arrive(s.empty[stage])

    @classmethod
    def toy(kernel, world, rng, rows=40):
        """Y = X of some rows."""
        def inputs(rng, rank):
            return {"X": rng.integers(0, 9, (rows, 8)).astype(np.float32)}
        tasks = -(-rows // 8)
        return Toy(_CopyConfig(), inputs, lambda ranks: [{"Y": x["X"]} for x in ranks], {"grid": (tasks, 1), "tasks": tasks}, sms=2)


__all__ = ["Hasty", "Silent", "Swapped", "Twice", "Lapped", "Copy"]
