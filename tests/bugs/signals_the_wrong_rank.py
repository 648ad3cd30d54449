"""Signal to the wrong rank: it goes to the sender itself, and the owner waits for ever."""

from pknumba.primitives import signal, wait_until

ERROR, WORDS = "DeadlockError", ("done[0] of rank 1 >= 2", "rank 1 block 0 communicator")
WORLD, COUNTERS = 2, {"done": 2}


def storer(g, s):
    for tile in range(2):
        signal(g.done, tile, g.rank)            # wrong
        # right: signal(g.done, tile, (tile + 1) % g.world_size)


def communicator(g, s):
    for tile in range(2):
        if g.rank == (tile + 1) % g.world_size:
            wait_until(g.done, tile, g.epoch * g.world_size)
