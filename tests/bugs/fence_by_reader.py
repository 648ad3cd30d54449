"""Fence by the wrong role: it must follow the write, in the role that wrote, before the arrival."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, store_async, store_async_read_wait, wait

ERROR, WORDS = "ProtocolError", ("has not called fence_async", "before arriving")
TILES, SEMAPHORES, TENSORS = {"c": (8, 8)}, {"full": (1, "storer"), "go": (1, "loader")}, {"Y": (8, 8)}


def loader(g, s):
    write(s.c, 1.0)
    arrive(s.go[0])                             # wrong
    # right: fence_async(s.c)
    # right: arrive(s.go[0])


def storer(g, s):
    wait(s.go[0], 0)
    fence_async(s.c)
    store_async(g.Y, (0, 0), s.c)
    store_async_read_wait(0)
