"""A role ends with a gather that no arrival tells of: shared memory may be gone before it is written."""

from pknumba.primitives import arrive_gathered, gather_async, wait

ERROR, WORDS = "ProtocolError", ("that no arrival tells of", "Call arrive_gathered after them")
TILES, SEMAPHORES = {"a": (2, 8, 8)}, {"full": (1, "gatherer")}
TENSORS, SCOPE, WORKERS = {"X": (8, 8)}, {"gatherer": "warp"}, {"gatherer": 2}


def gatherer(g, s):
    gather_async(s.a[0], g.X, (3, 0, -1, 5), 0)
    arrive_gathered(s.full[0])                  # wrong
    # right: gather_async(s.a[1], g.X, (3, 0, -1, 5), 0)
    gather_async(s.a[1], g.X, (3, 0, -1, 5), 0)  # wrong
    # right: arrive_gathered(s.full[0])


def storer(g, s):
    wait(s.full[0], 0)
