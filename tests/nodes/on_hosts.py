"""What test_hosts.py runs on every rank: on_hosts.py CASE."""

import os
import sys
import time

from pknumba import World, all_reduce, errors

import numpy as np


def say(*words):
    """One line, whole, from one of several ranks."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def everything():
    """Every operator, then what is left in shared memory."""
    from tests.nodes.cases import everything
    with World.mpi(executor="interpreter") as world:
        sizes = world.layout.sizes
        assert world.layout.names == ["alpha", "beta"] and os.uname().nodename == world.layout.names[world.here[0]]
        assert world.node.size == sizes[world.here[0]] and world.across.engine.name == "mpi"
        everything(world)
        say("fine", world)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
