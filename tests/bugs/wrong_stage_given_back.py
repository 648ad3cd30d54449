"""Wrong stage given back: the consumer arrives on the next stage instead of the one it has read."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_async, ring, wait

ERROR, WORDS = "RaceError or ProtocolError or DeadlockError", ("empty[0]",)
TILES, SEMAPHORES, TENSORS = {"x": (3, 8, 8)}, {"full": (3, "loader"), "empty": (3, "consumer")}, {"X": (72, 8)}


def loader(g, s):
    for k in range(9):
        stage, phase = ring(k, 3)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (k, 0), s.full[stage])


def consumer(g, s):
    for k in range(9):
        stage, phase = ring(k, 3)
        wait(s.full[stage], phase)
        read(s.x[stage])
        arrive(s.empty[min(stage + 1, 2)])      # wrong
        # right: arrive(s.empty[stage])
