"""The tuner: proposals, results that survive it, what operators read of them, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from pknumba import GemmAllReduceConfig, GemmConfig, World, config
from pknumba.config import kept as store
from pknumba.errors import ConfigError, UnsupportedError
from pknumba.tuning import best_comm_sms
from pknumba.tuning.shapes import THIRTY
from pknumba.tuning.tuner import best_of, candidates, foreign, of_results, tune

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CARD = "NVIDIA H200"
SHAPE = (2048, 2048, 1024)


class Bench:
    """Stands for GPUs: a configuration takes as long as its tile is wide; keeps what was asked for."""

    def __init__(self, stop=None):
        self.asked, self.stop = [], stop

    def __call__(self, world, op, shape, dtype, configs):
        self.asked += [(shape, c) for c in configs]
        if self.stop and len(self.asked) > self.stop:
            raise KeyboardInterrupt
        return {c: c.tile_n * 1e-6 + 1e-9 * c.group_m for c in configs}


def run(bench, path, shapes=(SHAPE,), op="gemm", size=1, **options):
    def main(world):
        world.card = CARD
        return tune(world, op, list(shapes), seconds=options.pop("seconds", 60), file=path, measure=bench, **options)
    found = World.local(size, executor="interpreter", num_sms=132).run(main)
    assert all(f == found[0] for f in found)
    return found[0]


def test_candidates_begin_with_the_models_favourite():
    found = candidates("gemm_all_reduce", (8192, 8192, 4096), 2)
    assert len(found) == len(set(found)) == 10 and all(isinstance(c, GemmAllReduceConfig) for c in found)
    assert found[0].intra_sm and found[0].tile_n == 192 and best_comm_sms("gemm_all_reduce", 8192, 8192, 4096, 2) == 0
    for c in candidates("gemm", (64, 64, 64), limit=20):
        c.check()
    assert candidates("gemm", (256, 256, 32768))[0].slices > 1 == candidates("gemm", (8192, 8192, 8192))[0].slices


def test_the_fastest_is_found_and_kept(tmp_path):
    path, bench = tmp_path / "t.jsonl", Bench()
    best, seconds = run(bench, path)[SHAPE]
    assert best.tile_n == min(c.tile_n for _, c in bench.asked) and seconds == pytest.approx(best.tile_n * 1e-6, rel=1e-2)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    keys = {(r["card"], r["sms"], r["world"], r["op"], r["dtype"]) for r in lines}
    assert len(lines) == 10 and keys == {(CARD, 132, 1, "gemm", "bfloat16")}
    assert best_of(path, "gemm")[0]["config"] == vars(best)


def test_a_killed_tuner_loses_nothing(tmp_path):
    path, shapes = tmp_path / "t.jsonl", [SHAPE, (4096, 4096, 512)]
    with pytest.raises(KeyboardInterrupt):
        run(Bench(stop=5), path, shapes)
    kept = len(path.read_text().splitlines())
    assert kept == 4
    with path.open("a") as file:
        file.write('{"card": "NVIDIA H2')                # killed in the middle of a line
    again = Bench()
    assert set(run(again, path, shapes)) == set(shapes)
    assert len(again.asked) == 16 and len(store.lines(path)) == 20


def test_ranks_agree_and_only_one_writes(tmp_path):
    path = tmp_path / "t.jsonl"
    best, _ = run(Bench(), path, op="gemm_all_reduce", size=3, limit=5)[SHAPE]
    assert len(path.read_text().splitlines()) == 5 and best.comm_sms >= 1


def test_what_operators_read(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    run(Bench(), path)
    monkeypatch.setenv("PKNUMBA_TUNING_FILE", str(path))
    asked = "gemm", CARD, 132, 1
    best = best_of(path)[0]["config"]
    assert config.tuned(*asked, SHAPE, "bfloat16") == config.tuned(*asked, (2040, 2040, 1100), "bfloat16") == best
    assert config.tuned(*asked, (2113, 2048, 1024), "bfloat16") is None, "a row of tiles more: what the model says of it counts"
    assert GemmConfig(**best).check() is None
    for other in (("gemm_all_reduce", CARD, 132, 1), ("gemm", "NVIDIA H100", 132, 1), ("gemm", CARD, 66, 1), ("gemm", CARD, 132, 2),
                  ("gemm", None, 132, 1)):
        assert config.tuned(*other, SHAPE, "bfloat16") is None
    assert config.tuned(*asked, SHAPE, "bfloat16", transposed=False) is None
    assert config.tuned(*asked, SHAPE, "float16") is None and config.tuned(*asked, (64, 64, 64), "bfloat16") is None
    state = config.tuned_state("gemm", CARD, 1, SHAPE, "bfloat16")
    assert state.startswith("10 for NVIDIA H200") and config.tuned_state("gemm", CARD, 1, (9, 9, 9), "bfloat16") == "none"
    monkeypatch.setenv("PKNUMBA_TUNED", "0")
    assert config.tuned(*asked, SHAPE, "bfloat16") is None and config.tuned_state("gemm", CARD, 1, SHAPE, "bfloat16") == "none"


def test_operators_use_it(tmp_path, monkeypatch):
    """An operator without a configuration takes the tuned one, as soon as it is in the file."""
    from pknumba.templates.matrices import MultiplyCall
    call = MultiplyCall.__new__(MultiplyCall)
    from pknumba import Gemm
    world = World.local(1, executor="interpreter", num_sms=132)
    world.card, call.kernel, call.world, call.transposed = CARD, Gemm, world, True
    monkeypatch.setenv("PKNUMBA_TUNING_FILE", str(tmp_path / "t.jsonl"))
    before = call._config(None, *SHAPE, "bfloat16")
    run(Bench(), tmp_path / "t.jsonl")
    after = call._config(None, *SHAPE, "bfloat16")
    assert before == config.best(*SHAPE, 132) and vars(after) == best_of(tmp_path / "t.jsonl")[0]["config"] != vars(before)


def test_what_ships_is_valid():
    """Every shipped line is a configuration that can be launched."""
    from pknumba.tuning import OPERATORS
    shipped = store.lines(store.SHIPPED)
    assert {r["op"] for r in shipped} <= {"gemm", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"}
    alone = [tuple(r["shape"]) for r in shipped if r["op"] == "gemm"]
    assert len(alone) == len(set(alone)) and set(alone) <= set(THIRTY)
    for r in shipped:
        OPERATORS[r["op"]].config(**r["config"]).check()
    measured = {(r["op"], *r["shape"]): r["us"] for r in of_results(RESULTS / "multigpu.jsonl")}
    assert {(r["op"], *r["shape"]) for r in shipped if r["op"] == "gemm_all_reduce"} <= set(measured)


@pytest.mark.parametrize("op, shapes, options, words", [("gem", (SHAPE,), {}, "no operator 'gem'"),
                                                        ("ring_attention", (SHAPE,), {}, "The tuner knows gemm, "),
                                                        ("gemm", (), {}, "At least one"),
                                                        ("gemm", (SHAPE,), {"seconds": -1}, "before anything was measured")])
def test_refuses(op, shapes, options, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        run(Bench(), tmp_path / "t.jsonl", shapes, op, **options)


def test_refuses_an_interpreted_world_and_strange_files(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    sys.modules.pop("launch", None)
    import tune as script
    with pytest.raises(UnsupportedError, match="The hardware decides"):
        tune(World.local(1, executor="interpreter"), "gemm", [SHAPE], seconds=1)
    with pytest.raises(ConfigError, match="no results"):
        best_of(tmp_path / "none.jsonl")
    run(Bench(), tmp_path / "t.jsonl")
    assert foreign(tmp_path / "t.jsonl", "NVIDIA H100") == [CARD] and foreign(tmp_path / "t.jsonl", CARD) == []
    assert script.main(["--ship", str(tmp_path / "best.jsonl"), "--file", str(tmp_path / "t.jsonl")]) == 0
    assert len(store.lines(tmp_path / "best.jsonl")) == 1
    assert script.main(["--show", "--file", str(tmp_path / "t.jsonl")]) == 0 and "2048x2048x1024" in capsys.readouterr().out
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="line 1 is no result of a tuner"):
        store.lines(tmp_path / "bad.jsonl")
    for argv in (["gem"], ["--show", "--file", str(tmp_path / "none.jsonl")]):
        with pytest.raises(ConfigError):
            script.main(argv)
    for argv in ([], ["gemm", "--shapes", "1x2"]):
        with pytest.raises(SystemExit):
            script.main(argv)
