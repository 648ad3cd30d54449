"""Stage given back too early: a consumer arrives while its multiplication may still read the stage."""

from pknumba.primitives import accumulator, arrive, expect, load_async, mma, mma_wait, ring, wait

ERROR, WORDS = "RaceError or ProtocolError", ("read by mma", "call mma_wait")
TILES, TENSORS = {"x": (2, 8, 8)}, {"X": (48, 8)}
SEMAPHORES = {"full": (2, "loader"), "empty": (2, "consumer")}


def loader(g, s):
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.empty[stage], phase ^ 1)
        expect(s.full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (k, 0), s.full[stage])


def consumer(g, s):
    acc = accumulator(8, 8)
    for k in range(6):
        stage, phase = ring(k, 2)
        wait(s.full[stage], phase)
        acc = mma(acc, s.x[stage], s.x[stage], k > 0, False)
        acc = mma_wait(acc, 1)                  # wrong
        # right: acc = mma_wait(acc, 0)
        arrive(s.empty[stage])
    mma_wait(acc, 0)
