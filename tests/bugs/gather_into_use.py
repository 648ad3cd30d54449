"""A gather into a tile that is being multiplied: nobody gave the stage back."""

from pknumba.primitives import accumulator, arrive, fence_async, gather_async, gather_wait, mma, mma_wait, wait

ERROR, WORDS = "RaceError or ProtocolError", ("by gather_async is not ordered after the read by mma",)
TILES, SEMAPHORES = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "gatherer"), "empty": (1, "consumer")}
TENSORS, SCOPE, WORKERS = {"X": (8, 8)}, {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    gather_async(s.b, g.X, (1, 2, 3, 4), 0)
    for k in range(3):
        if k > 0:
            wait(s.empty[0], k)                 # wrong
            # right: wait(s.empty[0], k ^ 1)
        gather_async(s.a, g.X, (3, 0, -1, 5), 0)
        gather_wait(0)
        fence_async(s.a)
        fence_async(s.b)
        arrive(s.full[0])


def consumer(g, s):
    acc = accumulator(8, 8)
    for k in range(3):
        wait(s.full[0], k)
        acc = mma_wait(mma(acc, s.a, s.b, k > 0, False), 0)
        arrive(s.empty[0])
