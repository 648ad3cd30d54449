"""Multicast into use: a block of a cluster fills a stage of both once its own consumer is done with it; the other's may be reading."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_multicast, ring, wait

ERROR, WORDS = "RaceError or ProtocolError", ("write of x[0] rows",)
TILES, TENSORS, BLOCKS, CLUSTER = {"x": (2, 16, 8)}, {"X": (96, 8)}, 2, 2
SEMAPHORES = {"full": (2, "loader"), "empty": (2, "consumer")}  # wrong
# right: SEMAPHORES = {"full": (2, "loader"), "empty": (2, "consumer", "cluster")}


def loader(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_multicast(s.x[stage], g.X, (k, 0), s.full[stage])
    for k in range(6, 8):                       # the other block arrives here until then
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)


def consumer(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.full[stage], phase)
        read(s.x[stage])
        arrive(s.empty[stage])
