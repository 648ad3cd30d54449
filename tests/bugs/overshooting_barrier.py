"""Overshooting barrier: all ranks arrive on one counter, so a fast rank's second arrival passes for a slow rank's first.

Here rank 0 is at its second meeting before rank 2 comes to the first, and rank 1 leaves the first without rank 2.
"""

from pknumba.interpreter import read, write
from pknumba.primitives import signal, signal_all, wait_until

ERROR, WORDS = "RaceError or ProtocolError", ("S of rank 2", "rank 2 block 0 communicator")
WORLD, TENSORS, SYMMETRIC, COUNTERS = 3, {"S": (8, 8)}, ("S",), {"arrived": 3, "hint": 1, "go": 1}
SCOPE = {"communicator": "thread"}


def come(g):
    signal_all(g.arrived, 0)                    # wrong
    # right: signal_all(g.arrived, g.rank)


def communicator(g, s):
    if g.rank == 0:
        come(g)
        wait_until(g.hint, 0, g.epoch)                # rank 1 has come
        come(g)
        signal(g.go, 0, 2)
    elif g.rank == 1:
        come(g)
        signal(g.hint, 0, 0)
        wait_until(g.arrived, 0, 3 * g.epoch)             # wrong
        # right: for peer in range(3): wait_until(g.arrived, peer, g.epoch)
        read(g.S.window((0, 0), (8, 8), 2))
    else:
        wait_until(g.go, 0, g.epoch)
        write(g.S.window((0, 0), (8, 8)), 1.0)
        come(g)
