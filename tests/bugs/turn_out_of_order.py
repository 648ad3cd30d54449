"""Turn out of order: a worker passes a turn that is not its own."""

from pknumba.primitives import turn_pass, turn_wait

ERROR, WORDS = "ProtocolError", ("Only whoever has the turn may pass it",)
WORKERS, TOGETHER = {"consumer": 2}, False


def consumer(g, s):
    for task in range(g.part, 4, 2):
        turn_wait(s, task)
        turn_pass(s, task + 1)                  # wrong
        # right: turn_pass(s, task)
