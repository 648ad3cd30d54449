"""Accumulator touched too early: its registers belong to the tensor cores until mma_wait."""

from pknumba.interpreter import write
from pknumba.primitives import accumulator, fence_async, mma, mma_wait, store

ERROR, WORDS = "ProtocolError", ("accumulator touched before mma_wait", "mma_wait(acc, 0)")
TILES = {"a": (8, 8), "c": (8, 8)}


def consumer(g, s):
    write(s.a, 1.0)
    fence_async(s.a)
    acc = mma(accumulator(8, 8), s.a, s.a, False, False)
    acc = mma_wait(acc, 1)                      # wrong
    # right: acc = mma_wait(acc, 0)
    store(s.c, acc, 0)
