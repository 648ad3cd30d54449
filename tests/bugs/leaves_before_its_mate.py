"""Leaves before its mate: the first block has loaded all it loads and ends; the other of its cluster gives a stage back to it later."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_multicast, ring, wait

ERROR, WORDS = "ProtocolError", ("may arrive, at leaves_before_its_mate.py", "when the block has left", "empty[1] of rank 0 block 0")
TILES, TENSORS, BLOCKS, CLUSTER = {"x": (2, 16, 8)}, {"X": (96, 8)}, 2, 2
SEMAPHORES = {"full": (2, "loader"), "empty": (2, "consumer", "cluster")}


def loader(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_multicast(s.x[stage], g.X, (k, 0), s.full[stage])
    for k in range(6, 7 + g.block):  # wrong
        # right: for k in range(6, 8):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)


def consumer(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.full[stage], phase)
        read(s.x[stage])
        arrive(s.empty[stage])
