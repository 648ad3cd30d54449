"""Loops of kernels whose movers fill the memory of peers: who tells whom that it may be filled again.

``finished`` has a number for each rank. Each storer and each mover of a rank, ``g.workers`` in all, adds one to that rank's number
on every rank when it has done its part of a call. A mover waits for it before it writes to that rank in the next call.
"""

from ..primitives import i32, keep_epoch, look, mod, signal_all, wait_until
from ..tiles import Task


def till_consumed(role, steps):
    """As ``drivers.together``; after the last task, everything that this block's loader loaded has been consumed."""
    def drive(cfg, g, s, part, place, places):
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
        signal_all(g.finished, g.rank)
    return drive


def arranged_till_consumed(role, steps):
    """As ``till_consumed`` of the tasks of ``drivers.arranged``."""
    def drive(cfg, g, s, part, place, places):
        step = i32(0)
        for turn in range(g.turns):
            number = i32(turn * places + place)
            if cfg.causal:
                number = i32(number + g.listed * (look(g.order, i32(g.listed * (place * g.turns + turn))) - number))
            if number < 0 or number >= g.tasks:
                break
            role(cfg, g, s, Task(number, i32(turn), part, mod(number, g.world_size), step))
            step = i32(step + steps(cfg, g, number))
        signal_all(g.finished, g.rank)
    return drive


def movers(role, steps):
    """Pieces place, place + places, ...; ``task.part``: which mover of its block, ``task.step``: loads that it made before.

    Once all of this rank have told, each has read which call this is: the next may have another number.
    """
    def drive(cfg, g, s, part, place, places):
        turn = i32(0)
        for i in range(place, g.pieces, places):
            role(cfg, g, s, Task(i32(i), turn, part, g.rank, i32(turn * g.depth)))
            turn = i32(turn + 1)
        signal_all(g.finished, g.rank)
        if place == 0:
            wait_until(g.finished, g.rank, i32(g.epoch * g.workers))
            keep_epoch(g.finished, g.epoch)
    return drive


def meeting_movers(role, steps):
    """As ``movers``, for kernels whose storers store to peers: the call is over once all of every rank have told. So the next may fill
    peers' memory at once."""
    def drive(cfg, g, s, part, place, places):
        turn = i32(0)
        for i in range(place, g.pieces, places):
            role(cfg, g, s, Task(i32(i), turn, part, g.rank, i32(turn * g.depth)))
            turn = i32(turn + 1)
        signal_all(g.finished, g.rank)
        if place == 0:
            for peer in range(g.world_size):
                wait_until(g.finished, i32(peer), i32(g.epoch * g.workers))
            keep_epoch(g.finished, g.epoch)
    return drive
