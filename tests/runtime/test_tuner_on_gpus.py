"""What the tuner and recording do on GPUs, with the stand-in for the driver: kernels compute nothing there, everything around them runs."""

import numpy as np
import pytest

from pknumba import World
from pknumba.tuning import tuner
from pknumba.tuning.record import record
from pknumba.tuning.tuner import best_of, tune


@pytest.mark.ptx
def test_tune(stub, tmp_path, monkeypatch):
    sample = tuner._sample
    monkeypatch.setattr(tuner, "_sample", lambda out: 0 * np.nan_to_num(sample(out)))       # results are whatever lay there
    world = World.local(1, executor="gpu")
    found = tune(world, "gemm", [(128, 192, 64)], seconds=60, limit=1, file=tmp_path / "t.jsonl")
    config, seconds = found[128, 192, 64]
    assert config.b_transposed and 0 < seconds < 1
    line, = best_of(tmp_path / "t.jsonl")
    assert line["card"] == "STUB H200 0" and line["sms"] == 132 and line["us"] == pytest.approx(seconds * 1e6, abs=1e-3)
    assert len(stub.log("cuGraphLaunch")) == tuner.ROUNDS and len(stub.log("cuGraphExecDestroy")) == 1
    world.close()


def test_record(stub, monkeypatch):
    monkeypatch.setenv("PKNUMBA_TIMELINE", "1")
    world, calls = World.local(1, executor="gpu"), []
    assert record(world, lambda: calls.append(1)) == [] and len(calls) == 2
    assert world.context().pointer and world.intervals.read() == []
    world.close()
