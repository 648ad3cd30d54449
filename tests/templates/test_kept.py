"""What calls of a kernel of one rank keep: which memory a call on a stream, or in a capture, is given."""

from types import SimpleNamespace

import pytest

from pknumba.runtime import streams
from pknumba.templates.kept import CAPTURED, OnStreams, place_of


@pytest.fixture
def captured(monkeypatch):
    """The streams that are being captured."""
    found = set()
    monkeypatch.setattr(streams, "capturing", found.__contains__)
    return found


def test_each_stream_has_its_own_and_graphs_have_one(captured):
    made, fired = [], []

    def make(key):
        made.append(key)
        return SimpleNamespace(fire=lambda stream: fired.append((key, stream)))
    launch = OnStreams(make, 7)
    assert made == [7, CAPTURED], "nothing can be allocated in a capture"
    captured.add(9)
    for stream in (7, 8, 9, 7, 8):
        launch.fire(stream)
    assert made == [7, CAPTURED, 8] and fired == [(7, 7), (8, 8), (CAPTURED, 9), (7, 7), (8, 8)]
    captured.clear()
    launch.fire(9)                                  # the same stream, no longer captured
    assert made[-1] == 9 and fired[-1] == (9, 9)


def test_a_call_that_is_first_made_in_a_capture(captured):
    captured.add(5)
    assert (place_of(5), place_of(6)) == (CAPTURED, 6)
    made = []
    OnStreams(lambda key: made.append(key) or SimpleNamespace(fire=lambda stream: None), place_of(5)).fire(5)
    assert made == [CAPTURED]
