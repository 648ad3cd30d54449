"""Relaxed addition: a counter that says "it is there" is added to without releasing what was written.

What waits for it sees the number, and need not see the data.
"""

from pknumba.interpreter import read, write
from pknumba.primitives import signal_all, tick, wait_until

ERROR, WORDS = "RaceError", ("S of rank", "is not ordered after the")
TENSORS, SYMMETRIC, COUNTERS = {"S": (8, 8)}, ("S",), {"ready": 1}


def communicator(g, s):
    write(g.S.window((0, 0), (8, 8)), 1.0)
    tick(g.ready, 0)                            # wrong
    # right: signal_all(g.ready, 0)


def storer(g, s):
    wait_until(g.ready, 0, g.epoch)
    read(g.S.window((0, 0), (8, 8)))


assert tick and signal_all
