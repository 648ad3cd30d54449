"""Grid too large: blocks wait for each other, and not all of them fit on the device at once."""

from pknumba.primitives import signal_all, wait_until

ERROR, WORDS = "DeadlockError", ("the grid cannot be resident", "Launch no more than 3 blocks")
BLOCKS = 4                                      # wrong
# right: BLOCKS = 3
RESIDENT, COUNTERS = 3, {"here": 1}


def communicator(g, s):
    signal_all(g.here, 0)
    wait_until(g.here, 0, g.blocks)
