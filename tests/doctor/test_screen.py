"""Colours, tables, bars: nothing of a terminal in a pipe."""

import io
import sys
import time

import pytest

from pknumba import screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("env, terminal, expected", [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False),
                                                     ({"TERM": "dumb"}, True, False),
                                                     ({"PMIX_RANK": "0"}, True, False), ({"FORCE_COLOR": "1"}, False, True)])
def test_colours(monkeypatch, env, terminal, expected):
    for name in ("NO_COLOR", "FORCE_COLOR", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert screen.colours(Terminal() if terminal else io.StringIO()) == expected


def test_table_is_aligned():
    assert screen.table([("a", "bcd", "x"), ("long", "e", "yz")]) == ["  a     bcd  x", "  long  e    yz"]
    assert screen.table([]) == []


@pytest.mark.parametrize("terminal, seconds, shown", [(True, 0.0, False), (True, 2.1, True), (False, 2.1, False)])
def test_bars_show_after_two_seconds_on_a_terminal(monkeypatch, terminal, seconds, shown):
    stream, now = Terminal() if terminal else io.StringIO(), time.time()
    monkeypatch.setattr("sys.stderr", stream)
    with screen.Bar(3, "kernels") as bar:
        assert (bar._bar is not None) == terminal
        if terminal:
            monkeypatch.setattr(bar._bar, "start_t", now - seconds)
            monkeypatch.setattr(bar._bar, "last_print_t", now - seconds)
        for _ in range(3):
            bar.step("gemm")
    assert ("kernels" in stream.getvalue()) == shown
    assert list(screen.Bar.over("ab", "letters", on=False)) == ["a", "b"]


def test_a_bar_is_worth_no_error(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(screen.Bar.over("ab", "letters")) == ["a", "b"]


@pytest.mark.parametrize("terminal, seconds, shown", [(True, 0.0, False), (True, 3.3, True), (False, 3.3, False)])
def test_waiting_is_told_from_the_third_second_on(monkeypatch, terminal, seconds, shown):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    waiting = screen.Waiting("gemm")
    monkeypatch.setattr(waiting, "_done", Clockwork(seconds))
    with waiting:
        if waiting._thread:
            waiting._thread.join()
    assert ("gemm: " in stream.getvalue()) == shown


class Clockwork:
    """An event that is set after so many seconds, which pass at once."""

    def __init__(self, seconds):
        self.left = seconds

    def wait(self, seconds):
        self.left -= seconds
        return self.left < 0

    def set(self):
        self.left = -1
