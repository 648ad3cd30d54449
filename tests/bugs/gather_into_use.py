"""A gather into a tile that is being multiplied: nobody gave the stage back."""

from pknumba.primitives import accumulator, arrive, arrive_gathered, fence_gathered, gather_async, mma, mma_wait, wait

ERROR, WORDS = "RaceError", ("by gather_async is not ordered after the", "and wait for that here")
TILES, SEMAPHORES = {"a": (8, 8), "b": (8, 8)}, {"full": (2, "gatherer"), "empty": (1, "consumer")}
TENSORS, SCOPE, WORKERS = {"X": (8, 8)}, {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    gather_async(s.b, g.X, (1, 2, 3, 4), 0)
    gather_async(s.a, g.X, (3, 0, -1, 5), 0)
    arrive_gathered(s.full[0])
    pass                                        # wrong
    # right: wait(s.empty[0], 0)
    gather_async(s.a, g.X, (5, 5, 1, 6), 0)
    arrive_gathered(s.full[1])


def consumer(g, s):
    acc = accumulator(8, 8)
    for k in range(2):
        wait(s.full[k], 0)
        fence_gathered(s.a)
        fence_gathered(s.b)
        acc = mma_wait(mma(acc, s.a, s.b, k > 0, False), 0)
        arrive(s.empty[0])

