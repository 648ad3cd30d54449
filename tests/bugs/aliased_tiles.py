"""Aliased tiles: the output tile lies over the last input stage and is written while another worker still reads that."""

from pknumba.interpreter import read, write
from pknumba.primitives import arrive, expect, load_async, sync, wait

ERROR, WORDS = "RaceError", ("c of rank 0", "read of", "x")
TILES, SEMAPHORES, TENSORS = {"x": (8, 8), "c": ("x", (8, 8))}, {"full": (1, "loader"), "done": (1, "consumer")}, {"X": (8, 8)}
WORKERS = {"consumer": 2}


def loader(g, s):
    expect(s.full[0], s.x)
    load_async(s.x, g.X, (0, 0), s.full[0])


def consumer(g, s):
    wait(s.full[0], 0)
    read(s.x)
    arrive(s.done[0])
    pass                                        # wrong
    # right: wait(s.done[0], 0)
    if g.part == 0:
        write(s.c, 2.0)
    sync(s)
