"""Block ends while it is being loaded: one load too many is issued, and nobody waits for it."""

from pknumba.interpreter import read
from pknumba.primitives import expect, load_async, wait

ERROR = "ProtocolError"
WORDS = ("ended while a load into its shared memory may be in flight", "that of ends_while_loading.py", "Wait for every phase")
TILES, SEMAPHORES, TENSORS = {"x": (2, 8, 8)}, {"full": (2, "loader")}, {"X": (16, 8)}


def loader(g, s):
    for k in range(2):
        expect(s.full[k], s.x[k])
        load_async(s.x[k], g.X, (k, 0), s.full[k])


def consumer(g, s):
    for k in range(1):                          # wrong
    # right: for k in range(2):
        wait(s.full[k], 0)
        read(s.x[k])
