"""Too many bytes announced: a tile is announced and never loaded, so the phase never completes."""

from pknumba.interpreter import read
from pknumba.primitives import expect, load_async, wait

ERROR, WORDS = "DeadlockError", ("full[0]", "256 bytes announced and not copied")
TILES, SEMAPHORES, TENSORS = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "loader")}, {"X": (8, 8)}


def loader(g, s):
    expect(s.full[0], s.a, s.b)                 # wrong
    # right: expect(s.full[0], s.a)
    load_async(s.a, g.X, (0, 0), s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    read(s.a)
