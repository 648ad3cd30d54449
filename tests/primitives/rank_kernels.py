"""Tiny kernels over ranks: communicators reduce, broadcast, signal and meet."""

from pknumba.primitives import (all_reduce, barrier, broadcast, mod, reduce, signal, store_add_async, store_async, store_async_wait,
                                sync, take, wait, wait_until)

from .kernels import Through
from .tiny import TinyComm

__all__ = ["ToPeer", "AddToPeer", "AllReduce", "Reduce", "ReduceElsewhere", "Take", "Broadcast", "Meet", "Relay"]


class ToPeer(Through):
    """Y of the next rank = X, by the copy engine."""

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        store_async(g.Y, (task.id, 0), s.y, mod(g.rank + 1, g.world_size))
        store_async_wait(0)


class AddToPeer(Through):
    """Y of every rank += X of every rank."""

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.y_full[0], 0)
        for peer in range(g.world_size):
            store_add_async(g.Y, (task.id, 0), s.y, peer=peer)
        store_async_wait(0)


class AllReduce(TinyComm):
    """X of every rank becomes the ranks' combination; a window of it is a task."""

    @staticmethod
    def communicator(cfg, g, s, task):
        all_reduce(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols), cfg.op, cfg.multicast)


class Reduce(TinyComm):
    """X of the rank that owns a window becomes the ranks' combination."""

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols), op=cfg.op, multicast=cfg.multicast)


class ReduceElsewhere(TinyComm):
    """The same into Y, which holds the rank's own windows one after the other."""

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols), g.Y, (task.turn * cfg.pieces + task.part, 0),
               multicast=cfg.multicast)


class Take(TinyComm):
    """Y becomes X in the windows that this rank owns, and X zero."""

    @staticmethod
    def communicator(cfg, g, s, task):
        take(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols), g.Y)


class Broadcast(TinyComm):
    """Each window of X becomes its owner's on every rank."""

    @staticmethod
    def communicator(cfg, g, s, task):
        broadcast(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols), cfg.multicast)


class Meet(TinyComm):
    """A communicator of every rank meets the others', then sums its rank's window of X into Y; a rank has one task."""

    counters = ("met",)

    @staticmethod
    def communicator(cfg, g, s, task):
        barrier(g.met, g.epoch)
        reduce(g.X, (task.id, 0), (cfg.rows, cfg.cols), g.Y, (0, 0))


class Relay(TinyComm):
    """Each rank's storer tells all ranks that its part of X is there; eight communicators then reduce a piece each."""

    counters = ("ready",)

    @staticmethod
    def storer(cfg, g, s, task):
        for peer in range(g.world_size):
            signal(g.ready, task.id, peer)

    @staticmethod
    def communicator(cfg, g, s, task):
        wait_until(g.ready, task.id, g.epoch * g.world_size)
        sync(s)
        all_reduce(g.X, (task.id * cfg.pieces + task.part, 0), (cfg.rows, cfg.cols))
