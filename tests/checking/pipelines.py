"""Random kernels that are right by construction: copies through two rings, workers together or in turns, and a reader on another rank.

Each of their synchronising lines can be left out by name; where it is needed, the checker must miss it in every schedule.
"""

import types

from pknumba import interpreter as cpu
from pknumba.interpreter import read, write
from pknumba.primitives import (arrive, expect, fence_async, load_async, mod, ring, signal, store_async, store_async_read_wait,
                                store_async_wait, wait, wait_until)


class Pipeline(types.ModuleType):
    """A kernel as ``tests.bugs.bench`` runs them: Z of a rank is twice the X of the rank before."""

    def __init__(self, rng, without=""):
        super().__init__("pipeline")
        self.without = without
        self.deep, self.shallow, self.steps = rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 7)
        self.turns, self.workers, self.WORLD = rng.random() < 0.4, rng.randint(1, 3), rng.choice([1, 2, 3, 5, 7])
        self.workers = 2 if self.turns else self.workers
        self.CALLS, self.SKEW = rng.randint(1, 3), rng.choice([0, 40])
        self.parts = 1 if self.turns else self.workers
        rows = 8 * self.steps
        self.TILES = {"a": (self.deep, 8, 8), "b": (self.shallow, self.parts, 8, 8)}
        self.SEMAPHORES = {"a_full": (self.deep, "loader"), "a_empty": (self.deep, "consumer"),
                           "b_full": (self.shallow, "consumer"), "b_empty": (self.shallow, "storer")}
        self.WORKERS, self.TOGETHER = {"consumer": self.workers}, not self.turns
        self.TENSORS = {"X": (rows, 8), "Y": (rows * self.parts, 8), "Z": (rows, 8)}
        self.COUNTERS, self.SYMMETRIC, self.SCOPE = {"done": self.steps, "read": self.WORLD}, ("Y",), {"communicator": "thread"}
        for name in ("loader", "consumer", "storer", "communicator", "expected"):       # a file's functions are in its __dict__
            setattr(self, name, getattr(self, name))

    def __str__(self):
        names = "deep shallow steps turns workers WORLD CALLS SKEW without"
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in names.split())

    def lines(self):
        """Names of the lines that matter in it."""
        found = ["expect", "wait a_full", "fence", "arrive b_full", "wait b_full", "written", "signal done", "wait done"]
        found += ["wait a_empty", "arrive a_empty"] if self.steps > self.deep else []
        found += ["wait b_empty", "arrive b_empty", "source read"] if self.steps > self.shallow else []
        found += ["turn_wait", "turn_pass"] if self.turns and self.steps > 1 else []
        found += ["signal read"] if self.CALLS > 1 else []
        return found + (["wait read"] if self.CALLS > 1 and self.WORLD > 1 else [])

    def _line(self, name, call, *args):
        if name != self.without:
            call(*args)

    def loader(self, g, s):
        """A thread: tiles of X."""
        for i in range(self.steps):
            stage, phase = ring(i, self.deep)
            self._line("wait a_empty", wait, s.a_empty[stage], phase ^ 1)
            self._line("expect", expect, s.a_full[stage], s.a[stage])
            load_async(s.a[stage], g.X, (i, 0), s.a_full[stage])

    def consumer(self, g, s):
        """Warpgroups: twice each tile, to a tile for each worker or, in turns, to one."""
        part = 0 if self.turns else g.part
        for i in range(g.part if self.turns else 0, self.steps, self.workers if self.turns else 1):
            if self.turns:
                self._line("turn_wait", cpu.turn_wait, i)
            stage, phase = ring(i, self.deep)
            self._line("wait a_full", wait, s.a_full[stage], phase)
            values = read(s.a[stage])
            self._line("arrive a_empty", arrive, s.a_empty[stage])
            stage, phase = ring(i, self.shallow)
            self._line("wait b_empty", wait, s.b_empty[stage], phase ^ 1)
            write(s.b[stage, part], 2 * values)
            self._line("fence", fence_async, s.b[stage, part])
            self._line("arrive b_full", arrive, s.b_full[stage])
            if self.turns:
                self._line("turn_pass", cpu.turn_pass, i)

    def storer(self, g, s):
        """A thread: tiles to Y, once the next rank has read the last call's."""
        reader = mod(g.rank + 1, g.world_size)
        for i in range(self.steps):
            stage, phase = ring(i, self.shallow)
            self._line("wait b_full", wait, s.b_full[stage], phase)
            if i == 0:
                self._line("wait read", wait_until, g.read, reader, g.epoch - 1)
            for part in range(self.parts):
                store_async(g.Y, (i * self.parts + part, 0), s.b[stage, part], g.rank)
            self._line("source read", store_async_read_wait, 0)
            self._line("arrive b_empty", arrive, s.b_empty[stage])
            self._line("written", store_async_wait, 0)
            self._line("signal done", signal, g.done, i, reader)

    def communicator(self, g, s):
        """A thread: Z from the first workers' tiles in the Y of the rank before."""
        before = mod(g.rank + g.world_size - 1, g.world_size)
        for i in range(self.steps):
            self._line("wait done", wait_until, g.done, i, g.epoch)
            write(g.Z.window((i, 0), (8, 8)), read(g.Y.window((i * self.parts, 0), (8, 8), before)))
        self._line("signal read", signal, g.read, g.rank, before)

    def expected(self, X):
        """Of every rank."""
        return [{"Z": 2 * X[r - 1]} for r in range(self.WORLD)]
