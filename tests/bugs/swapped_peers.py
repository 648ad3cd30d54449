"""Swapped peers: a ring sends to the right and signals to the left."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, wait_until

ERROR, WORDS = "RaceError", ("read of S of rank", "is not ordered after the write")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 3, {"S": (8, 8)}, ("S",), {"sent": 1}


def storer(g, s):
    right, left = (g.rank + 1) % g.world_size, (g.rank - 1) % g.world_size
    write(g.S.window((0, 0), (8, 8), right), g.rank)
    signal(g.sent, 0, left)                     # wrong
    # right: signal(g.sent, 0, right)


def communicator(g, s):
    wait_until(g.sent, 0, g.epoch)
    read(g.S.window((0, 0), (8, 8)))
