"""A wait that nothing ends, on a real GPU: every rank's HangError says who waited where for what, and the next world works."""

import re
import time

import ml_dtypes
import numpy as np
import pytest

from pknumba import Gemm, GemmAllReduce, GemmAllReduceConfig, GemmConfig, World, gemm, gemm_all_reduce
from pknumba.errors import HangError
from pknumba.primitives import i32, load_async, load_multicast, signal, store_async_wait
from pknumba.runtime import driver
from pknumba.templates import multiply

from .arrays import to_numpy

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]
CFG = GemmAllReduceConfig(tile_m=128, tile_n=128, stages=3, comm_sms=2)


class Silent(GemmAllReduce):
    """Rank 1 tells nobody that its tiles are written."""

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        if g.rank != 1:
            signal(g.done, task.id, task.owner)


def hang(world):
    """This rank's HangError as text, and the seconds that it took."""
    A, B = (world.asarray(np.ones(shape, ml_dtypes.bfloat16)) for shape in ((256, 64), (64, 256)))
    start = time.monotonic()
    with pytest.raises(HangError) as caught:
        multiply(Silent, world, A, B, out=None, config=CFG, stream=None)
        world.synchronize()
    return str(caught.value), time.monotonic() - start


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_names_what_it_waited_for(size):
    world = World.local(size, executor="gpu", wait_limit_s=1)
    found = world.run(hang)
    world.close()
    pattern = (r"World: Silent: rank (\d) block \d+ communicator at (gemm_all_reduce|drivers)\.py:\d+ waits for counter "
               r"(done|finished)\[\d+\]: expected \d+, seen \d+")
    print(*(text for text, _ in found), sep="\n")
    for rank, (text, seconds) in enumerate(found):
        said = re.match(pattern, text)
        assert said and int(said[1]) == rank, text
        assert seconds < 30
    assert any("gemm_all_reduce.py" in text and f"expected {size}, seen {size - 1}" in text for text, _ in found)


def test_a_new_world_works_after_a_hang():
    world = World.local(2, executor="gpu", wait_limit_s=1)
    world.run(hang)
    world.close()

    def main(world):
        A, B = (world.asarray(np.ones(shape, ml_dtypes.bfloat16)) for shape in ((256, 64), (64, 256)))
        C = gemm_all_reduce(world, A, B)
        world.synchronize()
        return to_numpy(C)

    with World.local(2, executor="gpu", wait_limit_s=20) as world:
        assert all((C == 128).all() for C in world.run(main))


class Unfed(Gemm):
    """The first block announces its last stage of A and does not load it; the other block of its cluster goes on."""

    @staticmethod
    def loader(cfg, g, s, task):
        for k in range(g.k_tiles):
            stage = Gemm.ready(cfg, g, s, task, k)
            if task.id > 0 or k < g.k_tiles - 1:
                load_async(s.a[stage], g.A, (task.row, i32(k)), s.ab_full[stage], task.first)
            load_multicast(s.b[stage], g.B, (task.col, i32(k)), s.ab_full[stage])


def test_blocks_of_a_cluster_outlive_a_hang():
    """Who gives up stays until the consumers of other blocks have run past it: the device is none the worse for it."""
    A, B = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((256, 1024), (1024, 512)))
    for _ in range(3):
        with World.local(1, executor="gpu", wait_limit_s=1) as world:
            operands = world.asarray(A), world.asarray(B)
            with pytest.raises(HangError, match=r"Unfed: rank 0 block \d+ \w+ at gemm.py:\d+ waits for semaphore \w+\["):
                multiply(Unfed, world, *operands, out=None, config=GemmConfig(cluster=2, tile_n=128), stream=None)
                world.synchronize()
        with World.local(1, executor="gpu") as world:
            C = gemm(world, world.asarray(A), world.asarray(B), config=GemmConfig(cluster=2, tile_n=128))
            world.synchronize()
            assert (to_numpy(C) == 1024).all()
