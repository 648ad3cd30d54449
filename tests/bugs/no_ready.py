"""No ready: a rank reads a peer's memory without knowing that the peer has written it in this call."""

from pknumba.interpreter import read, write
from pknumba.primitives import signal_all, wait_until

ERROR, WORDS = "RaceError", ("S of rank", "is not ordered after the")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 2, {"S": (8, 8)}, ("S",), {"ready": 1}


def communicator(g, s):
    write(g.S.window((0, 0), (8, 8)), 1.0)
    signal_all(g.ready, 0)
    pass                                        # wrong
    # right: wait_until(g.ready, 0, g.epoch * g.world_size)
    read(g.S.window((0, 0), (8, 8), 1 - g.rank))
    wait_until(g.ready, 0, g.epoch * g.world_size)
