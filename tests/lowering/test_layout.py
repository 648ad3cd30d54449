"""Kernels write and the host reads: both have the layout of the launch context and the hang record, and may not import each other."""

import pytest

from pknumba.lowering import CHECK, bounded, ptx, recording
from pknumba.runtime import hang, intervals


@pytest.mark.parametrize("name", ["ERROR", "ABORT", "LIMIT", "CONTEXT_RANK", "CONTEXT_SIZE", "EPOCH", "NUMBER"])
def test_launch_context(name):
    assert getattr(bounded, name) == getattr(hang, name)


def test_intervals():
    r = recording
    assert (r.ENTRIES, r.WARPS, r.BLOCKS, r.TIMELINE) == (intervals.ENTRIES, intervals.WARPS, intervals.BLOCKS, hang.TIMELINE)
    assert {r.Recording.TASK, r.Recording.SEMAPHORE_WAIT, r.Recording.COUNTER_WAIT} == set(intervals.CODES)
    assert r.ROLE_NUMBERS == intervals._ROLES and r.CURSORS >= r.CONTEXT + 8 and r.CURSORS + 2 * r.WARPS <= r.RING <= ptx.PIN - 8


def test_hang_record():
    assert bounded.MAGIC == hang.MAGIC_VALUE and CHECK == hang.CHECK not in (bounded.SEMAPHORE, bounded.COUNTER)
    for number, word in enumerate(bounded.RECORD):
        assert getattr(hang, word.upper()) == number
