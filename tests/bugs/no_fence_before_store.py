"""No proxy fence before a bulk store: the copy engine may send what the tile held before."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, store_async, store_async_read_wait, wait

ERROR, WORDS = "ProtocolError", ("through the async proxy", "has not called fence_async")
TILES, SEMAPHORES, TENSORS = {"c": (8, 8)}, {"full": (1, "consumer")}, {"Y": (8, 8)}


def consumer(g, s):
    write(s.c, 1.0)
    pass                                        # wrong
    # right: fence_async(s.c)
    arrive(s.full[0])


def storer(g, s):
    wait(s.full[0], 0)
    store_async(g.Y, (0, 0), s.c)
    store_async_read_wait(0)


def expected(X):
    return [{"Y": 1.0}]


assert fence_async
