"""One step less: the loader's loop is a step shorter than the consumer's."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_async, ring, wait

ERROR, WORDS = "DeadlockError", ("consumer", "full[1] phase 2")
TILES, SEMAPHORES, TENSORS = {"x": (2, 8, 8)}, {"full": (2, "loader"), "empty": (2, "consumer")}, {"X": (48, 8)}


def loader(g, s):
    for k in range(5):                          # wrong
    # right: for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (k, 0), s.full[stage])


def consumer(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.full[stage], phase)
        read(s.x[stage])
        arrive(s.empty[stage])
