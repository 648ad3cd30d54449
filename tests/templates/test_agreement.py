"""What ranks that share a card choose: how many SMs are surely theirs, how many blocks, how much is on the way."""

from types import SimpleNamespace

import pytest

from pknumba.config import CommConfig, NormConfig
from pknumba.kernels import AllGather, AllReduce, AllReduceRmsNorm
from pknumba.kernels.all_reduce_rmsnorm import OneShotRmsNorm
from pknumba.runtime import on_gpu
from pknumba.templates.agreement import sure_sms


def world(size, least, apart=False, crowded=False):
    """As much of a world of ranks on GPUs as choices look at."""
    return SimpleNamespace(executor="gpu", size=size, sharing=not apart and size > 1, crowded=crowded, allgather=lambda x: [x] * size,
                           cache={"links": apart, "least SMs": least})


def call(world, **more):
    return SimpleNamespace(world=world, given=None, least_sms=lambda: world.cache["least SMs"], **more)


@pytest.mark.parametrize("percent, ranks, told, sure", [
    (50, 2, 66, 58), (25, 4, 32, 24), (12, 8, 14, 14), (40, 2, 52, 52), (20, 5, 26, 20), (33.3, 3, 44, 36), (50, 4, 66, 25),
    (100, 2, 132, 58), (30, 4, 38, 24), (25, 2, 32, 24)])
def test_sms_that_mps_surely_gives(percent, ranks, told, sure):
    """What a process is told of a device under MPS is its own share: what is left of the card follows from the shares. Ranks may be
    promised more than there is."""
    assert on_gpu.sure_sms(told, percent, ranks) == sure


@pytest.mark.parametrize("size, least, crowded, sure", [(2, 58, False, 58), (2, 66, True, 58), (4, 33, True, 25), (1, 132, True, 132)])
def test_sure_sms(size, least, crowded, sure):
    """Fewer where nothing parts a card among its ranks, and they share one."""
    assert sure_sms(world(size, least, crowded=crowded)) == sure
    assert sure_sms(world(size, 132, apart=True, crowded=crowded)) == 132


@pytest.mark.parametrize("size, least, blocks", [(2, 58, 203), (4, 24, 84), (8, 14, 49)])
def test_blocks_of_ranks_that_share_a_card(size, least, blocks):
    assert AllReduce.most_blocks(call(world(size, least), cfg=CommConfig(warps=4))) == blocks
    assert AllReduce.most_blocks(call(world(size, least), cfg=CommConfig(warps=16))) == least


@pytest.mark.parametrize("pieces, blocks", [(1, 1), (100, 25), (1000, 84), (6143, 84), (6144, 384), (100_000, 384)])
def test_more_blocks_than_are_resident(pieces, blocks):
    """Where MPS says how many SMs a rank has, and each warp has four pieces all the same; elsewhere ranks would take each other's room."""
    assert AllReduce.blocks(call(world(4, 24), cfg=CommConfig(warps=4)), {"pieces": pieces}) == blocks
    assert AllReduce.blocks(call(world(4, 33, crowded=True), cfg=CommConfig(warps=4)), {"pieces": pieces}) == min(-(-pieces // 4), 87)
    assert AllReduce.blocks(call(world(1, 132), cfg=CommConfig(warps=4)), {"pieces": pieces}) == min(-(-pieces // 4), 462)
    assert AllReduce.blocks(call(world(4, 132, apart=True), cfg=CommConfig(warps=16)), {"pieces": pieces}) == min(-(-pieces // 16), 132)


def test_units_on_the_way():
    """Eight of a lane where it combines, of two ranks or of four; a copy is the same for every number of ranks."""
    for size, fields in ((2, (4, 8)), (4, (4, 8)), (8, (2, 8))):
        found = AllReduce.fitted(call(world(size, 132 // size)), CommConfig(), True)
        assert (found.unroll, found.at_once, found.warps) == (*fields, 4)
        found = AllGather.fitted(call(world(size, 132 // size)), CommConfig(), True)
        assert (found.unroll, found.at_once, found.warps) == (8, CommConfig().at_once, 4)
        found = AllReduce.fitted(call(world(size, 132, apart=True)), CommConfig(), True)
        assert (found.unroll, found.at_once, found.warps) == (4, 8, 16)
    found = AllReduce.fitted(call(world(2, 132, apart=True)), CommConfig(), False)
    assert (found.unroll, found.at_once, found.warps) == (1, 2, 16)


def test_rows_over_links():
    """Of many rows several small blocks are on an SM; of few, a large one has a row."""
    for rows, warps, blocks in ((100, 16, 100), (512, 4, 512), (700, 4, 528), (4096, 4, 2048)):
        it = call(world(2, 132, apart=True), box=SimpleNamespace(rows=rows))
        it.cfg = AllReduceRmsNorm.fitted(it, NormConfig(), False)
        assert (it.cfg.warps, AllReduceRmsNorm.blocks(it, {"rows": rows})) == (warps, blocks)
    assert OneShotRmsNorm.fitted(it, NormConfig(), False) == NormConfig()
