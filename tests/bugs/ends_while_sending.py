"""Block ends while it is being read: shared memory is gone, and the bulk store still reads it."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, store_async, store_async_read_wait, wait

ERROR, WORDS = "ProtocolError", ("ended with 1 bulk stores", "store_async_read_wait(0)")
TILES, SEMAPHORES, TENSORS = {"c": (8, 8)}, {"full": (1, "consumer")}, {"Y": (8, 8)}


def consumer(g, s):
    write(s.c, 1.0)
    fence_async(s.c)
    arrive(s.full[0])


def storer(g, s):
    wait(s.full[0], 0)
    store_async(g.Y, (0, 0), s.c)               # wrong
    # right: store_async(g.Y, (0, 0), s.c)
    # right: store_async_read_wait(0)


assert store_async_read_wait
