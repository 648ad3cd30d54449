"""The loop of storers that write to peers: who may be written to, and when everything has come.

``ready`` has a number for each rank: it has come to this call, so that what it got in the last may be overwritten. ``finished`` has one for
each rank: ``g.blocks`` of its storers have written everything.
"""

from ..primitives import i32, keep_epoch, mod, signal_all, store_async_wait, wait_until
from ..tiles import Task


def delivering(role, steps):
    """As ``drivers.together``; the first storer says that its rank has come, and ends when all of every rank have written.

    All of this rank then know which call this is: the next may have another number.
    """
    def drive(cfg, g, s, part, place, places):
        if place == 0:
            signal_all(g.ready, g.rank)
        turn, step = i32(0), i32(0)
        for t in range(place, g.tasks, places):
            role(cfg, g, s, Task(i32(t), turn, part, mod(t, g.world_size), step))
            step = i32(step + steps(cfg, g, i32(t)))
            turn = i32(turn + 1)
        store_async_wait(0)                     # written at peers, not merely read from shared memory
        signal_all(g.finished, g.rank)
        if place == 0:
            for peer in range(g.world_size):
                wait_until(g.finished, i32(peer), i32(g.epoch * g.blocks))
            keep_epoch(g.finished, g.epoch)
    return drive
