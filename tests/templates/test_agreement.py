"""What ranks that share a card choose: how many SMs are surely theirs, how many blocks, how much is on the way."""

from types import SimpleNamespace

import pytest

from pknumba.config import CommConfig, NormConfig
from pknumba.kernels import AllGather, AllReduce, AllReduceRmsNorm
from pknumba.kernels.all_reduce_rmsnorm import OneShotRmsNorm
from pknumba.templates.agreement import sure_sms


def world(size, least, apart=False, crowded=False):
    """As much of a world of ranks on GPUs as choices look at."""
    return SimpleNamespace(executor="gpu", size=size, crowded=crowded, cache={"links": apart, "least SMs": least},
                           allgather=lambda x: [x] * size)


def call(world, **more):
    return SimpleNamespace(world=world, given=None, least_sms=lambda: world.cache["least SMs"], **more)


@pytest.mark.parametrize("share, size, least, sure", [("50", 2, 66, 58), ("25", 4, 32, 24), ("12", 8, 14, 14), ("40", 2, 52, 52),
                                                      ("20", 5, 26, 20), ("25", 2, 32, 24), ("", 2, 66, 58)])
def test_sure_sms(share, size, least, sure, monkeypatch):
    """What a process is told of a device under MPS is its own share: what is left of the card follows from the shares."""
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share)
    assert sure_sms(world(size, least)) == sure
    assert sure_sms(world(size, 132, apart=True)) == 132


@pytest.mark.parametrize("share, size, least, blocks", [("50", 2, 66, 203), ("25", 4, 32, 84), ("12", 8, 14, 49)])
def test_blocks_of_ranks_that_share_a_card(share, size, least, blocks, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share)
    assert AllReduce.most_blocks(call(world(size, least), cfg=CommConfig(warps=4))) == blocks
    assert AllReduce.most_blocks(call(world(size, least), cfg=CommConfig(warps=16))) == least


@pytest.mark.parametrize("pieces, blocks", [(1, 1), (100, 25), (1000, 84), (8191, 84), (8192, 512), (100_000, 512)])
def test_more_blocks_than_are_resident(pieces, blocks, monkeypatch):
    """Where ranks share a card, and each warp has four pieces all the same."""
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")
    assert AllReduce.blocks(call(world(4, 32), cfg=CommConfig(warps=4)), {"pieces": pieces}) == blocks
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
