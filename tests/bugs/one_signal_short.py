"""One signal too few: the owner waits for all ranks but one before it adds their tiles."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal_all, wait_until

ERROR, WORDS = "RaceError", ("read of S of rank", "is not ordered after the write")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 3, {"S": (8, 8)}, ("S",), {"done": 1}
WORKERS = {"communicator": 2}


def communicator(g, s):
    if g.part == 0:
        write(g.S.window((0, 0), (8, 8)), 1.0)
        signal_all(g.done, 0)
    else:
        wait_until(g.done, 0, g.epoch * g.world_size - 1)   # wrong
        # right: wait_until(g.done, 0, g.epoch * g.world_size)
        for peer in range(g.world_size):
            read(g.S.window((0, 0), (8, 8), peer))
