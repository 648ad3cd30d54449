"""What test_hosts.py runs on every rank: on_hosts.py CASE. What a rank has to say goes to a file, because a cable may be cut."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import pknumba
from pknumba import World, all_gather, all_reduce, all_to_all, errors

X = np.ones(40_000, "float32")


def say(rank, *words):
    """For the test: one line of a rank."""
    with open(Path(os.environ["HOSTS"], f"said-{rank}"), "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def everything():
    """Every operator."""
    from tests.nodes.cases import once
    with World.mpi(executor="interpreter") as world:
        assert world.layout.names == ["alpha", "beta"] and os.uname().nodename == world.layout.names[world.here[0]]
        assert world.node.size == world.layout.sizes[world.here[0]] and world.across.engine.name == "mpi"
        once(world)
        say(world.rank, "fine", world)


def expect(world, kind, call):
    """Say what call() raises, how long it took, and that the world is broken if it is."""
    start = time.monotonic()
    try:
        call()
        say(world.rank, "no error")
    except kind as error:
        say(world.rank, f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {error}")


def written(names):
    """Wait until ranks have made these files, 8 s at most."""
    until, paths = time.monotonic() + 8, [Path(os.environ["HOSTS"], name) for name in names]
    while time.monotonic() < until and not all(path.exists() for path in paths):
        time.sleep(0.05)


def leave(world, ranks, last=lambda: None):
    """The end of a rank whose peers may be gone: MPI's own end would wait for them. Ranks wait for what the others have to say, since
    mpirun ends all of them with the first."""
    world._break("the test is over")
    world.close()
    written(f"said-{rank}" for rank in ranks)
    last()
    os._exit(0)


def versions():
    """Another version on beta."""
    if os.uname().nodename == "beta":
        pknumba.__version__ = "9.9"
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    try:
        World.mpi(executor="interpreter")
    except errors.WorldError as error:
        say(rank, error)


def wrong_calls():
    """Calls that nodes make differently, or that need nodes of one size; the world goes on."""
    with World.mpi(executor="interpreter", host_limit_s=20) as world:
        expect(world, errors.WorldError, lambda: (all_gather if world.here[0] else all_reduce)(world, X))
        expect(world, errors.DTypeError, lambda: all_reduce(world, X.astype(("int32", "float32")[world.here[0]])))
        expect(world, errors.ShapeError, lambda: all_to_all(world, X))
        expect(world, errors.UnsupportedError, lambda: pknumba.scatter(world, X))
        assert (all_reduce(world, X) == world.size).all()


def another_operator():
    """Calls that all have made before, so that nobody asks again: each waits for what never comes."""
    world = World.mpi(executor="interpreter", host_limit_s=3)
    all_reduce(world, X), all_gather(world, X)
    expect(world, errors.PknumbaError, lambda: (all_gather if world.here[0] else all_reduce)(world, X))
    leave(world, range(world.size))


def frozen():
    """A node that stops while data are on the way."""
    world = World.mpi(executor="interpreter", host_limit_s=3)
    all_reduce(world, X)
    world.barrier()
    if world.here[0]:
        os.kill(os.getpid(), signal.SIGSTOP)
    expect(world, errors.PknumbaError, lambda: all_reduce(world, X))
    leave(world, world.layout.groups[0])


def unplugged():
    """The cable is cut: each node misses the other."""
    world = World.mpi(executor="interpreter", host_limit_s=3)
    all_reduce(world, X)
    world.barrier()

    def cable(state):
        if world.rank == 0:
            subprocess.run(["ip", "link", "set", "to-beta", state], check=True)
    cable("down")
    world.node.barrier()
    expect(world, errors.PknumbaError, lambda: all_reduce(world, X))
    leave(world, range(world.size), lambda: cable("up"))                # so that mpirun can end the other node


def raised():
    """One rank leaves its world with an exception."""
    world = World.mpi(executor="interpreter", host_limit_s=20)
    all_reduce(world, X)
    world.barrier()
    Path(os.environ["HOSTS"], f"through-{world.rank}").touch()
    if world.rank == 3:
        written(f"through-{rank}" for rank in range(world.size))           # a rank still in the barrier would be told there
        try:
            with world:
                raise ValueError("no more data")
        except ValueError as error:
            say(world.rank, "raised", error)
    else:
        expect(world, errors.PknumbaError, lambda: all_reduce(world, X))
    leave(world, range(world.size))


def killed():
    """The processes of a node are gone from one moment to the next."""
    world = World.mpi(executor="interpreter", host_limit_s=3)
    all_reduce(world, X)
    world.barrier()
    gone(world)
    expect(world, errors.PknumbaError, lambda: all_reduce(world, X))
    leave(world, world.layout.groups[0])


def killed_in_a_barrier():
    """The same, while those who live wait in a barrier."""
    world = World.mpi(executor="interpreter", host_limit_s=8)
    world.barrier()
    gone(world, seconds=0.5)
    expect(world, errors.WorldError, world.barrier)
    leave(world, world.layout.groups[0])


def gone(world, seconds=0.0):
    """The processes of the second node end, so long after all of the first have come here: what these were sent before has arrived."""
    living = world.layout.groups[0]
    if world.rank in living:
        Path(os.environ["HOSTS"], f"here-{world.rank}").touch()
        return
    written(f"here-{rank}" for rank in living)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
