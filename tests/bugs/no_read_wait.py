"""Buffer reused while it is being sent: nobody waits until the bulk store has read it."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, ring, store_async, store_async_read_wait, wait

ERROR, WORDS = "RaceError", ("read by store_async", "store_async_read_wait")
TILES, TENSORS = {"c": (1, 8, 8)}, {"Y": (32, 8)}
SEMAPHORES = {"full": (1, "consumer"), "empty": (1, "storer")}


def consumer(g, s):
    for k in range(4):
        phase = ring(k, 1)[1]
        wait(s.empty[0], phase ^ 1)
        write(s.c[0], 1.0 + k)
        fence_async(s.c[0])
        arrive(s.full[0])


def storer(g, s):
    for k in range(4):
        phase = ring(k, 1)[1]
        wait(s.full[0], phase)
        store_async(g.Y, (k, 0), s.c[0])
        pass                                    # wrong
        # right: store_async_read_wait(0)
        arrive(s.empty[0])
    store_async_read_wait(0)
