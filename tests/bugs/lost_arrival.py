"""Lost arrival: one of two consumers leaves its last stage without arriving, and the loader waits for ever."""

from pknumba.interpreter import read
from pknumba.primitives import arrive, expect, load_async, ring, wait

ERROR, WORDS = "DeadlockError", ("loader", "empty[", "1 of 2 arrivals by consumer")
TILES, SEMAPHORES, TENSORS = {"x": (2, 8, 8)}, {"full": (2, "loader"), "empty": (2, "consumer")}, {"X": (48, 8)}
WORKERS = {"consumer": 2}


def loader(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (k, 0), s.full[stage])


def consumer(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.full[stage], phase)
        read(s.x[stage])
        if k != 2 or g.part == 0:               # wrong
        # right: if True:
            arrive(s.empty[stage])
