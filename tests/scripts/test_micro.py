"""The microbenchmarks' kernels on the interpreter, with races looked for, and the table of their lines."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from pknumba import World

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
probes, tables = importlib.import_module("probes"), importlib.import_module("micro_table")
sys.path.pop(0)                                     # scripts/ has files of the same names as benchmarks/


def fire(world, kernel, pieces, span, peer, **fields):
    rows = 16
    with world.symmetric((rows * 20, 64)) as array:
        array.local[...] = world.rank + 1
        call = probes.probe(kernel, world, array, probes.ProbeConfig(**{**dict(rows=rows, workers=2), **fields}), pieces, span, peer)
        world.barrier()
        call.fire()
        call.fire()
        world.barrier()
        return np.array(array.local[::rows, 0], float).tolist()


@pytest.mark.parametrize("name, expected", [("Store", [1, *[3] * 8, *[1] * 11]), ("Add", [1, *[7] * 8, *[1] * 11]),
                                            ("Copy", [1] * 8 + [3] * 8 + [1] * 4),
                                            ("Pull", [1] * 8 + [2] * 8 + [1] * 4), ("Load", [1] * 20)])
def test_bulk(name, expected):
    """Three ranks; rank 0 gets what rank 2 sends: twice, as there are two calls."""
    def run(world):
        return fire(world, getattr(probes, name), 8, 8, (world.rank + 1) % world.size, comm_sms=2)
    assert World.local(3, executor="interpreter", num_sms=4).run(run)[0] == expected


def test_hand_overs():
    def run(world):
        other = 1 - world.rank
        fire(world, probes.Arrive, 5, 1, world.rank, comm_sms=1)
        fire(world, probes.Hop, 5, 1, world.rank, comm_sms=2, workers=1)
        fire(world, probes.Hop, 5, 1, other, comm_sms=1, workers=1)
        return fire(world, probes.Written, 4, 4, other, comm_sms=1, workers=1)
    assert World.local(2, executor="interpreter", num_sms=4).run(run)[0][:6] == [1, 2, 2, 2, 2, 1]


@pytest.mark.ptx
def test_probes_compile():
    from pknumba.lowering import build
    for name in ("Copy", "Pull", "Hop"):
        _, record = build(getattr(probes, name).plan(probes.ProbeConfig(workers=1 if name == "Hop" else 4)))
        assert record["spill"] == 0 and not record["notices"]


def test_table(tmp_path):
    path, common = tmp_path / "micro.jsonl", dict(world=2, gpus=1)
    lines = [dict(common, op="micro: tma store", layout="SMs", points=[[1, 9.0, 100.0], [8, 4.0, 330.0], [132, 3.0, 350.0]]),
             dict(common, op="micro: latency mbarrier", layout=None, nanoseconds=63.6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = tables.table(path)
    assert "| tma store | 2 / 1 | 350 | 350.01 | 669.12 | 8 SMs | 15 |" in told and "| mbarrier | 2 / 1 | 64 | 64 |" in told
    with pytest.raises(ValueError, match="no lines"):
        tables.table(tmp_path / "none.jsonl")
    assert tables.main([str(tmp_path / "none.jsonl")]) == 2 and tables.main([str(path)]) == 0
