"""Reset against an early signal: the flag is set to zero after the barrier, when a fast peer may already be at the next one.

ParallelKittens' barrier waits for == N and resets. Here rank 1 is at its second barrier before rank 0 resets.
"""

from pknumba.primitives import signal, signal_all, wait_until

ERROR, WORDS = "DeadlockError", ("flag[0] of rank 0 >= 2",)
WORLD, COUNTERS = 2, {"flag": 1, "hint": 1}
SCOPE = {"communicator": "thread"}


def reset(g):
    g.flag.arrays[g.rank][0] = 0


def communicator(g, s):
    for meeting in range(2):
        signal_all(g.flag, 0)
        if meeting == 1:
            signal(g.hint, 0, 0)                # rank 0 is slow: it resets when rank 1 has come to the second meeting
        wait_until(g.flag, 0, 2 * g.epoch)                # wrong
        # right: wait_until(g.flag, 0, 2 * (meeting + 1))
        if g.rank == 0 and meeting == 0:
            wait_until(g.hint, 0, g.epoch)
            reset(g)                            # wrong
            # right: nothing
