"""Sum read too early: the tile is added to with an asynchronous store, and the signal goes out before it is written."""

from pknumba.interpreter import read, write
from pknumba.primitives import fence_async, signal, store_add_async, store_async_read_wait, store_async_wait, wait_until

ERROR, WORDS = "RaceError", ("store_add_async", "read of Y of rank 0")
TILES, TENSORS, COUNTERS = {"c": (8, 8)}, {"Y": (8, 8)}, {"done": 1}


def loader(g, s):
    write(s.c, 1.0)
    fence_async(s.c)
    store_add_async(g.Y, (0, 0), s.c)
    signal(g.done, 0, 0)                        # wrong
    # right: store_async_wait(0)
    # right: signal(g.done, 0, 0)
    store_async_read_wait(0)


def communicator(g, s):
    wait_until(g.done, 0, g.epoch)
    read(g.Y.window((0, 0), (8, 8)))


assert store_async_wait
