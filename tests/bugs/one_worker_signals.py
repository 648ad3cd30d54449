"""Wrong scope of a signal: one worker signals for all, while the others may still write."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal_all, sync, wait_until

ERROR, WORDS = "RaceError", ("S of rank 1", "communicator 1")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 2, {"S": (16, 8)}, ("S",), {"sent": 1}
WORKERS = {"communicator": 2}


def communicator(g, s):
    if g.rank == 0:
        write(g.S.window((g.part, 0), (8, 8), 1), 1.0)
        pass                                    # wrong
        # right: sync(s)
        if g.part == 0:
            signal_all(g.sent, 0)
    elif g.part == 0:
        wait_until(g.sent, 0, g.epoch)
        for k in range(2):
            read(g.S.window((k, 0), (8, 8)))


assert sync
