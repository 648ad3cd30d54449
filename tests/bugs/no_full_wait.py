"""No wait for a load: the consumer reads a tile that may not have arrived."""

from pknumba.interpreter import read
from pknumba.primitives import expect, load_async, wait

ERROR, WORDS = "RaceError or ProtocolError", ("reads x of", "Wait for the")
TILES, SEMAPHORES, TENSORS = {"x": (8, 8)}, {"full": (1, "loader")}, {"X": (8, 8)}


def loader(g, s):
    expect(s.full[0], s.x)
    load_async(s.x, g.X, (0, 0), s.full[0])


def consumer(g, s):
    pass                                        # wrong
    # right: wait(s.full[0], 0)
    read(s.x)
    wait(s.full[0], 0)
