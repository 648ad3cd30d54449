"""Wrong slot: all-to-all writes to the place of the receiver instead of the place of the sender."""

from pknumba.interpreter import read, write

import numpy as np

ERROR, WORDS = "WrongResult or RaceError", ("Y",)
WORLD, TENSORS, SYMMETRIC = 2, {"X": (16, 8), "Y": (16, 8)}, ("Y",)
COUNTERS = {"done": 1}


def communicator(g, s):
    for peer in range(g.world_size):
        block = read(g.X.window((peer, 0), (8, 8)))
        write(g.Y.window((peer, 0), (8, 8), peer), block)   # wrong
        # right: write(g.Y.window((g.rank, 0), (8, 8), peer), block)
    for peer in range(g.world_size):
        g.done.add(peer, 0, 1)
    g.done.wait(0, g.epoch * g.world_size)


def expected(X):
    return [{"Y": np.concatenate([x[8 * r:8 * r + 8] for x in X])} for r in range(2)]
