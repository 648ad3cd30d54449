"""Counter compared without the epoch: in the second call the signals of the first one are enough."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal_all, wait_until

ERROR, WORDS = "RaceError", ("S of rank", "is not ordered after the")
WORLD, CALLS, SKEW = 2, 2, 60
TENSORS, SYMMETRIC, COUNTERS = {"S": (8, 8)}, ("S",), {"ready": 1, "done": 2}


def communicator(g, s):
    write(g.S.window((0, 0), (8, 8)), g.epoch)
    signal_all(g.ready, 0)
    wait_until(g.ready, 0, g.world_size)        # wrong
    # right: wait_until(g.ready, 0, g.epoch * g.world_size)
    read(g.S.window((0, 0), (8, 8), 1 - g.rank))
    signal_all(g.done, g.rank)
    for rank in range(g.world_size):
        wait_until(g.done, rank, g.epoch)
