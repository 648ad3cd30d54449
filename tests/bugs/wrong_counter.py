"""Wrong counter: a rank waits on the counter of another tile."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, wait_until

ERROR, WORDS = "RaceError", ("read of S of rank", "is not ordered after the write")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 2, {"S": (16, 8)}, ("S",), {"done": 2}


def storer(g, s):
    for tile in range(2):
        write(g.S.window((tile, 0), (8, 8), 1 - g.rank), tile)
        signal(g.done, tile, 1 - g.rank)


def communicator(g, s):
    for tile in range(2):
        wait_until(g.done, 0, g.epoch)          # wrong
        # right: wait_until(g.done, tile, g.epoch)
        read(g.S.window((tile, 0), (8, 8)))
