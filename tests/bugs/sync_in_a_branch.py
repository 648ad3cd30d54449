"""Barrier in a branch: one of three workers does not come."""

from pknumba.primitives import sync

ERROR, WORDS = "DeadlockError", ("2 of 3 workers are here", "missing: rank 0 block 0 consumer 2")
WORKERS = {"consumer": 3}


def consumer(g, s):
    if g.part < 2:                              # wrong
    # right: if True:
        sync(s)
