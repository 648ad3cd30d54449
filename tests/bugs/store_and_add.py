"""Store and add mixed: one rank overwrites a tile to which the other may already have added."""

from pknumba.interpreter import write
from pknumba.primitives import (fence_async, signal, store_add_async, store_async, store_async_read_wait, store_async_wait,
                                wait_until)

ERROR, WORDS = "RaceError", ("Y of rank 0", "reduction", "store_add_async")
WORLD, TILES, TENSORS, SYMMETRIC, COUNTERS = 2, {"c": (8, 8)}, {"Y": (8, 8)}, ("Y",), {"set": 1}


def loader(g, s):
    write(s.c, 1.0)
    fence_async(s.c)
    for _ in range(1 - g.rank):
        store_async(g.Y, (0, 0), s.c)
        store_async_wait(0)
        signal(g.set, 0, 1)
    if g.rank == 1:
        pass                                    # wrong
        # right: wait_until(g.set, 0, g.epoch)
        peer_add(g, s)
    store_async_read_wait(0)


def peer_add(g, s):
    from pknumba.interpreter import transfer
    transfer("store_add_async", s.c, g.Y.window((0, 0), (8, 8), 0), combine="add")


assert store_add_async and wait_until
