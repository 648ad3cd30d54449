"""No proxy fence before a multiplication: tensor cores read shared memory through the async proxy too."""

from pknumba.interpreter import write
from pknumba.primitives import accumulator, fence_async, mma, mma_wait

ERROR, WORDS = "ProtocolError", ("mma reads", "has not called fence_async")
TILES = {"a": (8, 8), "b": (8, 8)}


def consumer(g, s):
    write(s.a, 1.0)
    write(s.b, 1.0)
    fence_async(s.a)                            # wrong
    # right: fence_async(s.a)
    # right: fence_async(s.b)
    acc = mma(accumulator(8, 8), s.a, s.b, False, False)
    mma_wait(acc, 0)
