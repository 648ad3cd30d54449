"""Epoch kept early: a block writes the next call's number once its own work is done; another one may not have started.

This was in our own decode attention: one rank on its own GPU was right, ranks that shared one hung after a hundred calls.
"""

from pknumba.interpreter import write
from pknumba.primitives import keep_epoch, signal, wait_until

ERROR, WORDS = "ProtocolError", ("keep_epoch: nothing orders the start of rank 0 block", "takes the next call's number")
BLOCKS, CALLS = 3, 2
TENSORS, COUNTERS = {"Y": (24, 8)}, {"ended": 1}
SCOPE = {"communicator": "thread"}


def communicator(g, s):
    write(g.Y.window((g.block, 0), (8, 8)), g.epoch)
    signal(g.ended, 0, g.rank)
    if g.block == 0:
        wait_until(g.ended, 0, g.epoch)                     # wrong
        # right: wait_until(g.ended, 0, g.epoch * g.blocks)
        keep_epoch(g.ended, g.epoch)
