"""An arrival that does not wait for what the worker gathers: it was asked for, not written."""

from pknumba.primitives import accumulator, arrive, arrive_gathered, fence_gathered, gather_async, mma, mma_wait, wait

ERROR, WORDS = "RaceError", ("gather_async of", "call arrive_gathered, and wait for that here")
TILES, SEMAPHORES = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "gatherer"), "last": (1, "gatherer")}
TENSORS, SCOPE, WORKERS = {"X": (8, 8)}, {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    for tile in (s.a, s.b):
        gather_async(tile, g.X, (3, 0, -1, 5), 0)
    arrive(s.full[0])                           # wrong
    # right: arrive_gathered(s.full[0])
    arrive_gathered(s.last[0])


def consumer(g, s):
    wait(s.full[0], 0)
    fence_gathered(s.a)
    fence_gathered(s.b)
    mma_wait(mma(accumulator(8, 8), s.a, s.b, False, False), 0)
    wait(s.last[0], 0)
