"""Wrong scope of a wait: one worker waits for all, and the others read without knowing."""

from pknumba.interpreter import read
from pknumba.primitives import expect, load_async, sync, wait

ERROR, WORDS = "RaceError or ProtocolError", ("consumer 1", "x")
TILES, SEMAPHORES, TENSORS = {"x": (2, 8, 8)}, {"full": (1, "loader")}, {"X": (16, 8)}
WORKERS = {"consumer": 2}


def loader(g, s):
    expect(s.full[0], s.x)
    for k in range(2):
        load_async(s.x[k], g.X, (k, 0), s.full[0])


def consumer(g, s):
    if g.part == 0:
        wait(s.full[0], 0)
    pass                                        # wrong
    # right: sync(s)
    read(s.x[g.part])


assert sync
