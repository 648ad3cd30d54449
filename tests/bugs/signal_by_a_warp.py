"""Signal by a whole warp: a primitive for one thread in a role that has 32 of them would add 32 times.

The scope of every primitive is checked against that of the role.
"""

from pknumba.primitives import signal, signal_all, wait_until

ERROR, WORDS = "ContractError", ("plays in a warp", "signal is for a thread")
WORLD, COUNTERS = 2, {"here": 1}


def communicator(g, s):
    signal(g.here, 0, 1 - g.rank)               # wrong
    # right: signal_all(g.here, 0)
    wait_until(g.here, 0, g.epoch)


assert signal and signal_all
