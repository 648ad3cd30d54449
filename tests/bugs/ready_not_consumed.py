"""Ready but not consumed: a rank overwrites what it sent in the next call, and nobody has said that it was read."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, wait_until

ERROR, WORDS = "RaceError", ("S of rank 1", "is not ordered after the read")
WORLD, CALLS, SKEW = 2, 3, 30
TENSORS, SYMMETRIC, COUNTERS = {"S": (8, 8)}, ("S",), {"ready": 1, "consumed": 1}
SCOPE = {"communicator": "thread"}


def communicator(g, s):
    if g.rank == 0:
        pass                                    # wrong
        # right: wait_until(g.consumed, 0, g.epoch - 1)
        write(g.S.window((0, 0), (8, 8), 1), g.epoch)
        signal(g.ready, 0, 1)
    else:
        wait_until(g.ready, 0, g.epoch)
        read(g.S.window((0, 0), (8, 8)))
        signal(g.consumed, 0, 0)
