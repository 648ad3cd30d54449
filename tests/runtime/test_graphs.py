"""CUDA graphs: run once, captured once, replayed by one call; nothing is left open when the calls fail."""

from types import SimpleNamespace

import pytest

from pknumba import World
from pknumba.errors import ConfigError
from pknumba.runtime import Graph, driver


def world(**more):
    return SimpleNamespace(executor="gpu", device=0, barrier=lambda: None, **more)


def test_calls_are_captured_once_and_replayed(stub):
    streams = []
    graph = Graph(world(), streams.append)
    assert streams == [graph.stream] * 2
    assert stub.log("cuStreamBeginCapture_v2") == ["cuStreamBeginCapture_v2 1"] and len(stub.log("cuStreamEndCapture")) == 1
    assert stub.log("cuGraphInstantiateWithFlags") == ["cuGraphInstantiateWithFlags 1"]
    graph.replay()
    assert graph.seconds() == pytest.approx(2.5e-3) == graph.seconds()
    assert stub.log("cuGraphLaunch") == ["cuGraphLaunch 1"] * 3 and len(stub.log("cuEventCreate")) == 2
    graph.close()
    graph.close()
    assert len(stub.log("cuGraphExecDestroy")) == 1


def test_a_failing_call_ends_the_capture(stub):
    calls = []

    def fails(stream):
        calls.append(stream)
        if len(calls) > 1:
            driver.stream_synchronize(stream)
            raise ValueError("in capture")
    with pytest.raises(ValueError, match="in capture"):
        Graph(world(), fails)
    assert len(stub.log("cuStreamEndCapture")) == 1


def test_not_on_the_interpreter():
    with pytest.raises(ConfigError, match="for GPUs"):
        Graph(World.local(1, executor="interpreter"), lambda stream: None)
