"""CUDA graphs: run once, captured once, replayed by one call; nothing is left open when the calls fail."""

import gc
from types import SimpleNamespace

import pytest

from pknumba import World
from pknumba.errors import ConfigError, DriverError
from pknumba.runtime import Graph, driver, graphs


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


def test_launches_become_one_when_they_come_often(stub, monkeypatch):
    made, captured = [], set()
    monkeypatch.setattr(graphs, "capturing", captured.__contains__)
    bundle = graphs.Bundle(made.append, 0)
    for _ in range(2):
        bundle.run(0)
    assert made == [0, 0] and not bundle.ready and not stub.log("cuStreamBeginCapture_v2")
    bundle.run(0)
    assert made[:3] == [0, 0, 0] and len(made) == 4 and made[3] != 0, "the fourth is captured on a stream of its own"
    assert list(bundle.ready) == [0] and not stub.log("cuGraphLaunch") and len(stub.log("cuStreamDestroy_v2")) == 1
    assert bundle.ready[0]() == 0 and len(made) == 4 and len(stub.log("cuGraphLaunch")) == 1
    captured.add(7)
    for _ in range(4):
        bundle.run(7)
    assert 7 not in bundle.ready, "what is captured already stays as it is"
    captured.clear()
    bundle.run(7)
    assert len(stub.log("cuGraphInstantiateWithFlags")) == 1 and bundle.ready[7]() == 0 and len(stub.log("cuGraphLaunch")) == 2
    captured.add(7)
    assert bundle.ready[7]() == 0 and made[-1] == 7 and len(stub.log("cuGraphLaunch")) == 2, "no graph in a graph"
    del bundle
    gc.collect()
    assert len(stub.log("cuGraphExecDestroy")) == 1


def test_a_bundle_that_is_refused(stub):
    bundle = graphs.Bundle(lambda stream: None, 0)
    for _ in range(3):
        bundle.run()
    stub.fail("cuGraphLaunch", 719)
    code = bundle.ready[0]()
    stub.fail("cuGraphLaunch", 719)
    with pytest.raises(DriverError, match="launches of one call"):
        bundle.refused(bundle.ready[0], code)
    assert code == 719
    bundle.refused(bundle.ready[0], 201)                    # another device was current
