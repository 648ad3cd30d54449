"""Root goes on: after a broadcast the root changes its tile for the next call, and a slow peer still reads the old one."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, signal_all, wait_until

ERROR, WORDS = "RaceError", ("write of S of rank 0", "is not ordered after the read")
WORLD, CALLS, SKEW = 3, 2, 50
TENSORS, SYMMETRIC, COUNTERS = {"S": (8, 8)}, ("S",), {"ready": 1, "read": 1}
SCOPE = {"communicator": "thread"}


def communicator(g, s):
    if g.rank == 0:
        write(g.S.window((0, 0), (8, 8)), g.epoch)
        signal_all(g.ready, 0)
        wait_until(g.read, 0, (g.epoch - 1) * (g.world_size - 1))   # wrong
        # right: wait_until(g.read, 0, g.epoch * (g.world_size - 1))
    else:
        wait_until(g.ready, 0, g.epoch)
        read(g.S.window((0, 0), (8, 8), 0))
        signal(g.read, 0, 0)
