"""The smallest kernels worth running: X and Y are rows of 64 x 8 tiles, a loader, a consumer and a storer hand tiles on."""

from dataclasses import dataclass

import numpy as np

from ..checking import Toy
from ..primitives import arrive, expect, fence_async, load, load_async, ring, store, store_async, store_async_read_wait, wait
from ..templates import LCS
from ..tiles import Config, Semaphore, Tile, shared

__all__ = ["Tiny", "TinyConfig", "ROWS", "COLUMNS"]

#: Of a tile.
ROWS, COLUMNS = 64, 8


@dataclass(frozen=True)
class TinyConfig(Config):
    """How many tiles each ring holds, and how many consumers there are."""

    stages: int = 2
    consumers: int = 1
    ping_pong: bool = False
    dtype: str = "float32"

    @property
    def tile(self):
        return (ROWS, COLUMNS)


class Tiny(LCS):
    """Y = X, tile by tile. Replace a role and it is another kernel.

    A class of yours says what it means in ``definition(X of every rank) -> Y of every rank``.
    """

    config, tensors = TinyConfig, ("X", "Y")
    numbers = {"grid": 2, "tasks": 1}

    @staticmethod
    def steps(cfg, g, number):
        return 1

    @staticmethod
    def shared(cfg):
        return shared(x=Tile((cfg.stages, *cfg.tile), "float32", 32), y=Tile((cfg.stages, *cfg.tile), "float32", 32),
                      x_full=Semaphore(cfg.stages, by="loader"), x_empty=Semaphore(cfg.stages, by="consumer"),
                      y_full=Semaphore(cfg.stages, by="consumer"), y_empty=Semaphore(cfg.stages, by="storer"))

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: global -> shared
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_empty[stage], phase ^ 1)
        expect(s.x_full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (task.id, 0), s.x_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):              # 128 threads: shared -> registers -> shared
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_full[stage], phase)
        acc = load(s.x[stage])
        arrive(s.x_empty[stage])
        wait(s.y_empty[stage], phase ^ 1)
        store(s.y[stage], acc)
        fence_async(s.y[stage])
        arrive(s.y_full[stage])

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: shared -> global
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.y_full[stage], phase)
        store_async(g.Y, (task.id, 0), s.y[stage])
        store_async_read_wait(0)
        arrive(s.y_empty[stage])

    @staticmethod
    def definition(X):
        """Y of every rank, given X of every rank."""
        return X

    @classmethod
    def toy(kernel, world, rng, tiles=5, sms=2, **changes):
        """X of so many tiles on every rank, small integers; ``changes``: fields of the configuration."""
        def inputs(rng, rank):
            return {"X": rng.integers(-4, 5, (tiles * ROWS, COLUMNS)).astype(np.float32)}

        def expected(ranks):
            return [{"Y": np.asarray(y, np.float32)} for y in kernel.definition([x["X"] for x in ranks])]
        return Toy(kernel.config(**changes), inputs, expected, {"grid": (tiles, 1), "tasks": tiles}, sms=sms)
