"""Launches in clusters: who shares what, who starts with whom, and what no device could run."""

import numpy as np
import pytest

from pknumba import interpreter as cpu
from pknumba.errors import ConfigError
from pknumba.tiles import Role, Semaphore, Tile

READY = Semaphore(1, by="a", of="cluster")


def launch(session, blocks, size, body, resident=None):
    """``body(s)`` in every block; s has a tile ``x``, a semaphore ``ready`` of the cluster and the block."""
    found = session.launch(0, "test", blocks, resident, size)
    for number in range(blocks):
        block = found.block(number)
        s = dict(block=block, x=block.tile("x", 1024, Tile((8 * size, 8), "float32", 32)),
                 ready=block.semaphore("ready", READY, READY.arrivals(Role("a", cluster=size))))
        found.role(block, Role("a", cluster=size), 0, lambda s=s: body(**s))
    found.wait()


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_an_arrival_reaches_every_block(size):
    """Each block waits for all blocks of its cluster, and for no other cluster: one cluster fits at a time."""
    order = []

    def body(block, x, ready):
        ready[0].arrive()
        ready[0].wait(0)
        order.append(block.number // size)
    for seed in range(4):
        launch(cpu.Session(seed=seed), 3 * size, size, body, resident=size)
    assert order == sorted(order[:3 * size]) * 4


def test_shares_are_the_memory_of_every_block():
    def body(block, x, ready):
        for mate in block.mates():
            x.share(mate, block.seat, 2).put(np.full((8, 8), 1 + block.seat))
        ready[0].arrive()
        ready[0].wait(0)
        assert (x.array[:8] == 1).all() and (x.array[8:] == 2).all()
        assert x.share(block, 1, 2).name == "x rows 8 to 16" and x.share(block, 0, 1).name == "x"
    launch(cpu.Session(), 4, 2, body)


@pytest.mark.parametrize("blocks, size", [(3, 2), (9, 9), (4, 0)])
def test_refused(blocks, size):
    with pytest.raises(ConfigError, match=f"{blocks} blocks in clusters of {size}. A cluster has 1 to 8 blocks, and a grid whole clusters"):
        cpu.Session().launch(0, "test", blocks, None, size)
