"""Kernels of ``micro.py``: bulk copies and nothing else, and hand-overs and nothing else. They run on the interpreter too."""

from dataclasses import dataclass
from typing import ClassVar

from pknumba.primitives import (arrive, expect, i32, keep_epoch, load_async, mod, signal, store_add_async, store_async,
                                store_async_read_wait, store_async_wait, wait, wait_until)
from pknumba.templates.base import Template
from pknumba.templates.call import Workspace, prepare
from pknumba.templates.forms import rows_of
from pknumba.tiles import Config, Role, Semaphore, Tile, shared

#: Columns of the arrays that are moved: rows of 128 bytes.
COLUMNS = 64


@dataclass(frozen=True)
class ProbeConfig(Config):
    """A probe: ``workers`` threads of each of ``comm_sms`` blocks move chunks of ``boxes`` boxes of ``rows`` rows."""

    rows: int = 64
    boxes: int = 1
    workers: int = 4
    comm_sms: int = 1
    dtype: str = "bfloat16"

    runtime: ClassVar[tuple] = ("comm_sms",)

    @property
    def chunk(self):
        """Rows of a chunk."""
        return self.rows * self.boxes


class Probe(Template):
    """All blocks are alike. ``S`` is symmetric, ``flag`` counts; ``pieces``: chunks, ``span``: chunks that there are, ``peer``: who is
    written to."""

    config, tensors, symmetric, counters = ProbeConfig, ("S",), ("S",), ("flag",)
    numbers = {"blocks": 1, "tasks": 1, "pieces": 1, "span": 1, "peer": 1}

    @staticmethod
    def shared(cfg):
        return shared(full=Semaphore(cfg.workers, by="communicator"),
                      chunk=Tile((cfg.workers, cfg.boxes, cfg.rows, COLUMNS), cfg.dtype))

    @classmethod
    def roles(kernel, cfg):
        return {"communicator": Role("communicator", "thread", cfg.workers, together=False)}

    @classmethod
    def all_counters(kernel):
        return kernel.counters

    @classmethod
    def registers(kernel, cfg):
        return 0, 0

    @staticmethod
    def communicator(cfg, g, s, task):
        pass

    @classmethod
    def driver(kernel, role):
        return lambda communicator, steps: kernel.drive


def filled(cfg, g, s, part):
    """The worker's chunk, from the first rows of its own array."""
    expect(s.full[part], s.chunk[part])
    load_async(s.chunk[part], g.S, (0, 0), s.full[part])
    wait(s.full[part], 0)


class Store(Probe):
    """Chunks from shared memory to the peer, four in flight a worker."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        Probe.fill(cfg, g, s, part)
        for i in range(place, g.pieces, places):
            store_async(g.S, (i32(mod(i32(i), g.span) + 1), 0), s.chunk[part], g.peer)
            store_async_read_wait(3)
        store_async_wait(0)


class Add(Probe):
    """The same, added to what is there."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        Probe.fill(cfg, g, s, part)
        for i in range(place, g.pieces, places):
            store_add_async(g.S, (i32(mod(i32(i), g.span) + 1), 0), s.chunk[part], g.peer)
            store_async_read_wait(3)
        store_async_wait(0)


class Load(Probe):
    """Chunks of the own array to shared memory, one in flight a worker."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        turn = i32(0)
        for i in range(place, g.pieces, places):
            expect(s.full[part], s.chunk[part])
            load_async(s.chunk[part], g.S, (mod(i32(i), g.span), 0), s.full[part])
            wait(s.full[part], mod(turn, 2))
            turn = i32(turn + 1)


class Copy(Probe):
    """Chunks of the own array through shared memory to the peer."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        turn = i32(0)
        for i in range(place, g.pieces, places):
            store_async_read_wait(0)
            expect(s.full[part], s.chunk[part])
            load_async(s.chunk[part], g.S, (mod(i32(i), g.span), 0), s.full[part])
            wait(s.full[part], mod(turn, 2))
            store_async(g.S, (i32(mod(i32(i), g.span) + g.span), 0), s.chunk[part], g.peer)
            turn = i32(turn + 1)
        store_async_wait(0)


class Pull(Probe):
    """Chunks of the peer's array, ``P``, through shared memory to the own."""

    tensors = ("S", "P")

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        turn = i32(0)
        for i in range(place, g.pieces, places):
            store_async_read_wait(0)
            expect(s.full[part], s.chunk[part])
            load_async(s.chunk[part], g.P, (mod(i32(i), g.span), 0), s.full[part])
            wait(s.full[part], mod(turn, 2))
            store_async(g.S, (i32(mod(i32(i), g.span) + g.span), 0), s.chunk[part])
            turn = i32(turn + 1)
        store_async_wait(0)


class Written(Probe):
    """One chunk after the other to the peer, each waited for until it is written."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        Probe.fill(cfg, g, s, part)
        for i in range(place, g.pieces, places):
            store_async(g.S, (i32(mod(i32(i), g.span) + 1), 0), s.chunk[part], g.peer)
            store_async_wait(0)


class Arrive(Probe):
    """Two workers of a block hand over to each other by mbarriers, there and back ``pieces`` times."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        for i in range(g.pieces):
            if part == 0:
                arrive(s.full[0])
                wait(s.full[1], mod(i32(i), 2))
            else:
                wait(s.full[0], mod(i32(i), 2))
                arrive(s.full[1])


class Hop(Probe):
    """Two blocks of this rank (peer = rank), or the first block of this rank and of its peer, hand over by counters."""

    @staticmethod
    def drive(cfg, g, s, part, place, places):
        other = i32(1 - place) if g.peer == g.rank else i32(0)
        first = place == 0 if g.peer == g.rank else g.rank < g.peer
        before = i32((g.epoch - 1) * g.pieces)
        for i in range(g.pieces):
            if first:
                signal(g.flag, other, g.peer)
                wait_until(g.flag, i32(place), i32(before + i + 1))
            else:
                wait_until(g.flag, i32(place), i32(before + i + 1))
                signal(g.flag, other, g.peer)
        if place == 0:
            keep_epoch(g.flag, g.epoch)


Probe.fill = staticmethod(filled)


def probe(kernel, world, array, cfg, pieces, span, peer):
    """A call of a probe on a symmetric array of rows of 128 bytes, to be fired.

    Args:
        pieces: chunks that all blocks move, or hand-overs there and back. span: different ones among them. peer: rank written to.
    """
    numbers = {"blocks": 0, "tasks": 0, "pieces": pieces, "span": span, "peer": peer}
    rows, ranks = array.shape[0], range(world.size)
    matrices = {"S": rows_of(world, array, [(r, 0, rows) for r in ranks]),
                "P": rows_of(world, array, [((r + peer - world.rank) % world.size, 0, rows) for r in ranks])}
    matrices = {name: matrices[name] for name in kernel.tensors}
    return prepare(kernel, world, cfg, matrices, numbers, Workspace(kernel, world, cfg, 2))
