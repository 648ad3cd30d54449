"""Tail skipped: each block takes tasks // blocks tasks, and the last tasks are nobody's."""

from pknumba.interpreter import read, write

ERROR, WORDS = "WrongResult", ("Y is wrong",)
BLOCKS, TENSORS = 2, {"X": (40, 8), "Y": (40, 8)}


def consumer(g, s):
    tasks = 5
    for turn in range(tasks // g.blocks):       # wrong
    # right: for turn in range((tasks - g.block + g.blocks - 1) // g.blocks):
        at = (turn * g.blocks + g.block, 0)
        write(g.Y.window(at, (8, 8)), read(g.X.window(at, (8, 8))))


def expected(X):
    return [{"Y": x} for x in X]
