"""Crossed waits: two roles wait for each other before either arrives."""

from pknumba.primitives import arrive, wait

ERROR, WORDS = "DeadlockError", ("a[0] phase 0", "b[0] phase 0", "nobody completed a phase")
SEMAPHORES = {"a": (1, "loader"), "b": (1, "storer")}


def loader(g, s):
    wait(s.b[0], 0)                             # wrong
    # right: arrive(s.a[0])
    # right: wait(s.b[0], 0)
    arrive(s.a[0])                              # wrong
    # right: nothing


def storer(g, s):
    wait(s.a[0], 0)
    arrive(s.b[0])
