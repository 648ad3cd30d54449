"""A role ends while what it gathers may still be on its way: shared memory is gone when the block ends."""

from pknumba.primitives import gather_async, gather_wait

ERROR, WORDS = "ProtocolError", ("that it never waited for", "Call gather_wait(0) last")
TILES, TENSORS, SCOPE, WORKERS = {"a": (2, 8, 8)}, {"X": (8, 8)}, {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    for stage in range(2):
        gather_async(s.a[stage], g.X, (3, 0, -1, 5), 0)
    gather_wait(1)                              # wrong
    # right: gather_wait(0)
