"""One pending too many: the ring has one buffer, and one store may still be reading it."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, ring, store_async, store_async_read_wait, wait

ERROR, WORDS = "RaceError", ("c[0]", "read by store_async")
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
        store_async_read_wait(1)                # wrong
        # right: store_async_read_wait(0)
        arrive(s.empty[0])
    store_async_read_wait(0)
