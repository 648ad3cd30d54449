"""Lost signal: the last rank does not signal its tile, and whoever adds the tiles waits for ever."""

from pknumba.primitives import signal, wait_until

ERROR, WORDS = "DeadlockError", ("done[0] of rank 0 >= 3 (is 2", "communicator")
WORLD, COUNTERS = 3, {"done": 1}


def storer(g, s):
    if g.rank < g.world_size - 1:               # wrong
    # right: if g.rank < g.world_size:
        signal(g.done, 0, 0)


def communicator(g, s):
    if g.rank == 0:
        wait_until(g.done, 0, g.epoch * g.world_size)
