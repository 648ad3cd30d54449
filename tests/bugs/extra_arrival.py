"""Extra arrival: a worker arrives twice in a phase, so the phase completes without the other worker."""

from pknumba.interpreter import write
from pknumba.primitives import arrive, wait
from pknumba.interpreter import read

ERROR, WORDS = "ProtocolError or RaceError", ("full[0]",)
TILES, SEMAPHORES = {"x": (2, 8, 8)}, {"full": (1, "consumer")}
WORKERS = {"consumer": 2}


def consumer(g, s):
    write(s.x[g.part], 1.0)
    for _ in range(2 - g.part):                 # wrong
    # right: for _ in range(1):
        arrive(s.full[0])


def storer(g, s):
    wait(s.full[0], 0)
    read(s.x[0])
    read(s.x[1])
