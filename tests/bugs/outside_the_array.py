"""Window before the array: a coordinate of -1, which the copy engine would take as a huge one."""

from pknumba.interpreter import read

ERROR, WORDS = "ProtocolError", ("starts before the array", "Coordinates count windows from 0")
TENSORS = {"X": (16, 8)}


def consumer(g, s):
    for k in range(2):
        read(g.X.window((k - 1, 0), (8, 8)))    # wrong
        # right: read(g.X.window((k, 0), (8, 8)))
