"""Lapped parity: two workers in turns share a ring, and nothing makes them enter it in the order of their tasks.

This was in our own GEMM (docs/decisions/0004): a worker that comes two laps early finds the parity it waits for.
"""

from pknumba.interpreter import write
from pknumba.primitives import arrive, fence_async, ring, store_async, store_async_read_wait, wait

ERROR, WORDS = "RaceError or ProtocolError", ("c[0]", "is not ordered after the", "consumer")
TILES, TENSORS = {"c": (1, 8, 8)}, {"Y": (64, 8)}
SEMAPHORES = {"full": (1, "consumer"), "empty": (1, "storer"), "turn": (1, "consumer")}
WORKERS, TOGETHER = {"consumer": 2}, False


def consumer(g, s):
    for task in range(g.part, 4, 2):
        pass                                    # wrong
        # right: wait(s.turn[0], ring(task, 1)[1] ^ 1)
        for panel in range(2):
            phase = ring(task * 2 + panel, 1)[1]
            wait(s.empty[0], phase ^ 1)
            write(s.c[0], 1.0)
            fence_async(s.c[0])
            arrive(s.full[0])
        arrive(s.turn[0])


def storer(g, s):
    for step in range(8):
        phase = ring(step, 1)[1]
        wait(s.full[0], phase)
        store_async(g.Y, (step, 0), s.c[0])
        store_async_read_wait(0)
        arrive(s.empty[0])
