"""When ranks in several processes count as stuck: the page alone, each state set by hand."""

import numpy as np
import pytest

from pknumba.interpreter.control_page import IDLE, ControlPage


@pytest.fixture
def pages():
    """The control page as each of three ranks sees it."""
    parts = [np.zeros(ControlPage.size(3), np.uint8) for _ in range(3)]
    return [ControlPage(parts, rank, 3) for rank in range(3)]


def idle(page):
    """All tasks of the rank wait, and it has seen all that was announced."""
    page.seen[page.rank, :] = page.events
    page.states[page.rank] = IDLE


def test_all_idle_is_stuck(pages):
    for page in pages:
        assert not pages[0].stuck()
        idle(page)
    assert pages[0].stuck()


def test_an_event_that_was_not_seen_is_not_stuck(pages):
    for page in pages:
        idle(page)
    pages[1].events[1] += 1
    assert not pages[0].stuck()


def test_host_code_that_waits_for_a_stuck_rank_is_stuck(pages):
    for page in pages[1:]:
        page.enter_outside(range(3))
    idle(pages[0])
    assert pages[0].stuck()
    assert pages[0].describe(2) == "waits in host code for rank 0" and pages[0].missing(1) == [0]


def test_host_code_whose_meeting_is_complete_is_not_stuck(pages):
    """Rank 0 came last and went on to wait in a kernel; the others have not yet had a chance to run."""
    for page in pages:
        page.enter_outside(range(3))
    pages[0].leave_outside()
    idle(pages[0])
    assert not pages[0].stuck()
    for page in pages[1:]:                  # they go on, and come to their next meeting, which rank 0 never reaches
        page.leave_outside()
        page.enter_outside(range(3))
    idle(pages[0])
    assert pages[0].stuck()


def test_meetings_of_some_ranks(pages):
    """Rank 2 is no part of the meeting, so that it has not come says nothing."""
    pages[0].enter_outside([0, 1])
    idle(pages[2])
    assert pages[0].missing(0) == [1]
    pages[1].enter_outside([0, 1])
    pages[1].leave_outside()
    idle(pages[1])
    assert pages[0].missing(0) == [] and not pages[1].stuck()
