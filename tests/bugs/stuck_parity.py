"""Stuck parity: a role waits for the same parity in every lap, so from the second lap on it does not wait at all."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_async, ring, wait

ERROR, WORDS = "RaceError or ProtocolError", ("x[",)
TILES, SEMAPHORES, TENSORS = {"x": (2, 8, 8)}, {"full": (2, "loader"), "empty": (2, "consumer")}, {"X": (64, 8)}


def loader(g, s):
    for k in range(8):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (k, 0), s.full[stage])


def consumer(g, s):
    for k in range(8):
        stage, phase = ring(k, 2)
        wait(s.full[stage], 0)                  # wrong
        # right: wait(s.full[stage], phase)
        read(s.x[stage])
        arrive(s.empty[stage])
