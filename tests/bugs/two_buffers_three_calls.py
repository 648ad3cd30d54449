"""Two buffers are not enough alone: a sender two calls ahead is back at the buffer that the receiver reads."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, wait_until

ERROR, WORDS = "RaceError", ("S of rank 1", "is not ordered after the read")
WORLD, CALLS, SKEW = 2, 8, 60
TENSORS, SYMMETRIC, COUNTERS = {"S": (16, 8), "X": (8, 8)}, ("S",), {"ready": 1, "consumed": 1}
SCOPE = {"communicator": "thread"}


def communicator(g, s):
    slot = g.epoch % 2
    if g.rank == 0:
        wait_until(g.consumed, 0, max(g.epoch - 3, 0))      # wrong
        # right: wait_until(g.consumed, 0, max(g.epoch - 2, 0))
        write(g.S.window((slot, 0), (8, 8), 1), g.epoch)
        signal(g.ready, 0, 1)
    else:
        wait_until(g.ready, 0, g.epoch)
        for _ in range(20):                     # slow
            read(g.X.window((0, 0), (8, 8)))
        read(g.S.window((slot, 0), (8, 8)))
        signal(g.consumed, 0, 0)
