"""Signal after the read-wait only: the tile has left shared memory, and has not arrived where the peer will look.

ParallelKittens' gemm_ar_h100_lcsc does this.
"""

from pknumba.interpreter import read, write
from pknumba.primitives import (arrive, fence_async, signal, store_async, store_async_read_wait, store_async_wait, wait,
                                wait_until)

ERROR, WORDS = "RaceError", ("write by store_async", "call store_async_wait, then arrive or signal")
WORLD, TILES, SEMAPHORES = 2, {"c": (8, 8)}, {"full": (1, "consumer")}
TENSORS, SYMMETRIC, COUNTERS = {"Y": (8, 8)}, ("Y",), {"done": 1}


def consumer(g, s):
    write(s.c, 1.0)
    fence_async(s.c)
    arrive(s.full[0])


def storer(g, s):
    wait(s.full[0], 0)
    store_async(g.Y, (0, 0), s.c)
    store_async_read_wait(0)                    # wrong
    # right: store_async_wait(0)
    signal(g.done, 0, 1 - g.rank)


def communicator(g, s):
    wait_until(g.done, 0, g.epoch)
    read(g.Y.window((0, 0), (8, 8), 1 - g.rank))


assert store_async_wait and store_async_read_wait
