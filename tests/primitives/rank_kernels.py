"""Tiny kernels over ranks: communicators reduce, broadcast, signal and meet."""

from pknumba.primitives import all_reduce, barrier, broadcast, reduce, signal, sync, wait_until

from .tiny import TinyComm

__all__ = ["AllReduce", "Reduce", "ReduceElsewhere", "Broadcast", "Meet", "Relay"]


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
