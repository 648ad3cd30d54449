"""Too few bytes announced: two tiles are loaded, one is announced. Whichever comes first completes the phase."""

from pknumba.interpreter import read
from pknumba.primitives import expect, load_async, wait

ERROR, WORDS = "DeadlockError or RaceError or ProtocolError", ("of b of", "is not ordered after the write by load_async", "Wait for the")
TILES, SEMAPHORES, TENSORS = {"a": (8, 8), "b": (8, 8)}, {"full": (1, "loader")}, {"X": (16, 8)}


def loader(g, s):
    expect(s.full[0], s.a)                      # wrong
    # right: expect(s.full[0], s.a, s.b)
    load_async(s.a, g.X, (0, 0), s.full[0])
    load_async(s.b, g.X, (1, 0), s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    read(s.a)
    read(s.b)
