"""Two owners: every rank adds the tile in place instead of its owner, so one reads what another has already written."""

from pknumba.interpreter import write
from pknumba.primitives import all_reduce, signal_all, wait_until

ERROR, WORDS = "RaceError", ("C of rank", "communicator")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 2, {"C": (8, 8)}, ("C",), {"done": 1}


def communicator(g, s):
    write(g.C.window((0, 0), (8, 8)), 1.0)
    signal_all(g.done, 0)
    wait_until(g.done, 0, g.epoch * g.world_size)
    if g.rank >= 0:                             # wrong
    # right: if g.rank == 0:
        all_reduce(g.C, (0, 0), (8, 8))
