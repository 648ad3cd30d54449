"""The proxy fence before the wait: what a gather has not yet written, no fence shows to the tensor cores."""

from pknumba.primitives import accumulator, arrive, fence_async, gather_async, gather_wait, mma, mma_wait, wait

ERROR, WORDS = "ProtocolError", ("mma reads a", "has not called fence_async")
TILES, SEMAPHORES, TENSORS = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "gatherer")}, {"X": (8, 8)}
SCOPE, WORKERS = {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    for tile in (s.a, s.b):
        gather_async(tile, g.X, (3, 0, -1, 5), 0)
    fence_async(s.a)                            # wrong
    # right: gather_wait(0)
    # right: fence_async(s.a)
    gather_wait(0)
    fence_async(s.b)
    arrive(s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    mma_wait(mma(accumulator(8, 8), s.a, s.b, False, False), 0)
