"""No proxy fence after a gather: copies by threads are ordinary writes, which tensor cores do not see before."""

from pknumba.primitives import accumulator, arrive_gathered, fence_gathered, gather_async, mma, mma_wait, wait

ERROR, WORDS = "ProtocolError", ("mma reads a", "nobody called fence_gathered", "after the wait for it")
TILES, SEMAPHORES, TENSORS = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "gatherer")}, {"X": (8, 8)}
SCOPE, WORKERS = {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    for tile in (s.a, s.b):
        gather_async(tile, g.X, (3, 0, -1, 5), 0)
    arrive_gathered(s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    fence_gathered(s.b)                         # wrong
    # right: fence_gathered(s.a)
    # right: fence_gathered(s.b)
    mma_wait(mma(accumulator(8, 8), s.a, s.b, False, False), 0)
