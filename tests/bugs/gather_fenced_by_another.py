"""A proxy fence of a worker that hands nothing on: each consumer shows to the tensor cores what it waited for itself."""

from pknumba.primitives import accumulator, arrive_gathered, fence_gathered, gather_async, mma, mma_wait, wait

ERROR, WORDS = "ProtocolError", ("mma reads", "nobody called fence_gathered")
TILES, SEMAPHORES, TENSORS = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "gatherer")}, {"X": (8, 8)}
SCOPE, WORKERS = {"gatherer": "warp"}, {"gatherer": 2, "consumer": 2}


def gatherer(g, s):
    for tile in (s.a, s.b):
        gather_async(tile, g.X, (3, 0, -1, 5), 0)
    arrive_gathered(s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    for tile in (s.a, s.b) if g.part == 0 else ():  # wrong
        # right: for tile in (s.a, s.b):
        fence_gathered(tile)
    mma_wait(mma(accumulator(8, 8), s.a, s.b, False, False), 0)
