"""Ownership off by one: signals go to tile % ranks, and (tile + 1) % ranks waits for them."""

from pknumba.primitives import signal, wait_until

ERROR, WORDS = "DeadlockError", ("communicator", "done[")
WORLD, COUNTERS = 3, {"done": 6}


def storer(g, s):
    for tile in range(6):
        signal(g.done, tile, tile % g.world_size)


def communicator(g, s):
    for tile in range(6):
        if (tile + 1) % g.world_size == g.rank:     # wrong
        # right: if tile % g.world_size == g.rank:
            wait_until(g.done, tile, g.epoch * g.world_size)
