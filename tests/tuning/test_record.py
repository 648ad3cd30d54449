"""Intervals that kernels record on GPUs: the ring's layout, events made of them, and kernels that record only where they are asked to."""

import struct

import pytest

from pknumba import Gemm, GemmReduceScatter, World
from pknumba.errors import WorldError
from pknumba.runtime import intervals
from pknumba.tuning.record import events_of, record, whole


def ring(*entries):
    """A ring with (block, warp, entry, begin, length, word)."""
    data = bytearray(intervals.Intervals.size)
    for block, warp, entry, begin, length, word in entries:
        struct.pack_into("<QII", data, 16 * ((block * intervals.WARPS + warp) * intervals.ENTRIES + entry), begin, length, word)
    return bytes(data)


def test_events_of_a_ring():
    found = intervals.decode(ring((0, 0, 0, 1000, 50, 1 | 2 << 4 | 7 << 8 | 3 << 16), (0, 4, 0, 900, 250, 2 | 2 << 4 | 7 << 8 | 64 << 16),
                                  (130, 9, 511, 1200, 9, 1 | 4 << 4 | 131 << 8), (1, 8, 2, 950, 10, 1 | 1 << 4 | 8 << 8)))
    assert [(i.block, i.warp, i.sm, i.role, i.code) for i in found] == [
        (0, 4, 7, "consumer", 2), (1, 8, 8, "loader", 1), (0, 0, 7, "consumer", 1), (130, 9, 131, "communicator", 1)]
    events = events_of(2, found, found[0].begin)
    assert [(e.begin, e.end, e.kind, e.lane) for e in events] == [
        (0, 250, "wait", "rank 2 SM   7 consumer 1"), (50, 60, "copy", "rank 2 SM   8 loader"),
        (100, 150, "mma", "rank 2 SM   7 consumer 0"),
        (300, 309, "access", "rank 2 SM 131 communicator 9")]


def test_clocks_that_are_far_apart():
    """Signals say how far, but for whole turns of 32 bits; a rank that recorded nothing keeps what they said."""
    far = 3 * 2**32
    assert whole([10_000, 10_000 + 2_400_000, 12_000 - far, 0], [0, 2_399_000, 1500, 7]) == [0, 2_399_000, 1500 - far, 7]
    assert whole([0, 500], [0, 9]) == [0, 9]


def test_a_world_that_records_nothing_says_so():
    with pytest.raises(WorldError, match="PKNUMBA_TIMELINE=1"):
        record(World.local(1, executor="interpreter"), lambda: None)


@pytest.mark.ptx
@pytest.mark.parametrize("kernel", [Gemm, GemmReduceScatter], ids=["gemm", "gemm_reduce_scatter"])
def test_only_kernels_that_are_asked_record(kernel, monkeypatch):
    from pknumba.lowering.entry import build, to_ptx
    from pknumba.lowering.variant import tag
    cfg, stored = kernel.config(tile_m=128, tile_n=192, c_stages=3, ping_pong=True), "st.global.v4.u32"
    assert stored not in to_ptx(kernel.plan(cfg))
    monkeypatch.setenv("PKNUMBA_TIMELINE", "1")
    record = build(kernel.plan(cfg))[1]
    assert record["spill"] == 0 and not record["notices"]
    if kernel is Gemm:
        tasks = to_ptx(kernel.plan(cfg))
        assert 0 < tasks.count(stored) <= 6 and "test_wait" not in tasks        # tasks of three roles: waits are as usual
        monkeypatch.setenv("PKNUMBA_TIMELINE", "waits")
        waits = to_ptx(kernel.plan(cfg))
        assert waits.count(stored) > tasks.count(stored) + 3 and "test_wait" in waits and tag() == " timeline waits"
