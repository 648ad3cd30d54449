"""python -m benchmarks: cases by name in a time budget, tables and plots from lines alone, and what it refuses."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("benchmarks_main", FOLDER / "__main__.py")
    module = sys.modules["benchmarks_main"] = importlib.util.module_from_spec(spec)     # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_cases_share_the_time(bench, tmp_path):
    asked, said = [], []

    def run(command, timeout):
        asked.append((command, timeout))
        return 3 if "launch.py" in command[1] else 0
    statuses = bench.sweep(["gemm", "launch", "micro"], 80, tmp_path, run, said.append)
    assert statuses == {"gemm": 0, "launch": 3, "micro": 0}
    budgets = [float(c[c.index("--budget") + 1]) for c, _ in asked]
    assert budgets[0] == pytest.approx(30, abs=1) and budgets[1] == pytest.approx(32, abs=1) and budgets[2] == pytest.approx(80, abs=1)
    assert [t for _, t in asked] == pytest.approx([30 + bench.GRACE, 32 + bench.GRACE, 80], abs=1)      # the last ends with the whole
    assert asked[2][0][:4] == [str(FOLDER.parent / "scripts" / "mps"), "run", "-n", "2"] and str(tmp_path / "gemm.jsonl") in asked[0][0]
    assert any("FAILED with status 3" in line for line in said) and said[0].startswith("[---") and said[-1].startswith("[###")


def test_no_case_starts_when_the_time_is_up(bench):
    said = []
    statuses = bench.sweep(["gemm", "micro"], 0.5, None, lambda *_: 0, said.append)
    assert statuses == {"gemm": None, "micro": None} and sum("left out" in line for line in said) == 2


def test_every_case_is_a_program_with_the_flags_of_all(bench):
    for name, case in bench.CASES.items():
        text = (FOLDER / case.command[0]).read_text()
        assert "protocol.options(" in text, name
        assert all(word in text or not word.startswith("--") for word in case.command[1:]), name


def test_tables_and_plots_from_lines_alone(bench, tmp_path, capsys):
    for name in ("gemm.jsonl", "multigpu.jsonl"):
        shutil.copy(FOLDER / "results" / name, tmp_path)
    line = dict(world=2, gpus=1, dtype="bfloat16", shape=[2], time_us=1.0, ratio=None, rel_error=None, card="H200", commit="c",
                command="python x", op="micro: tma store", layout="SMs", points=[[1, 9.0, 100.0], [8, 4.0, 330.0]])
    attention = {**line, "op": "ring_attention", "gpus": 2, "layout": "full", "shape": [1, 16, 16, 8192, 128], "tflops": 600.0,
                 "baseline": "NCCL ring", "baseline_us": 1.5}
    (tmp_path / "micro.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(attention) + "\n")
    assert bench.main(["--report", "--results", str(tmp_path)]) == 0
    assert "| gemm" in capsys.readouterr().out
    drawn = {p.stem for p in tmp_path.glob("*.png")}
    assert drawn == {"model_exposed", "gemm_ratios", "communicating_sms", "bandwidth", "attention_lengths"}
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in tmp_path.glob("*.png"))


def test_kernels_are_compiled_ahead(monkeypatch):
    """On the first rank, each once, whatever a launch passes as numbers; what cannot be compiled is said."""
    from pknumba import GemmAllReduceConfig
    from pknumba.errors import ConfigError
    from pknumba.kernels import GemmAllReduce
    from pknumba.templates import call
    spec = importlib.util.spec_from_file_location("ahead", FOLDER / "ahead.py")
    ahead = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ahead)
    inside, apart = GemmAllReduceConfig(intra_sm=True), GemmAllReduceConfig(comm_sms=8)
    job, asked = ahead.job("GemmAllReduce", inside), []
    assert ahead.job("GemmAllReduce", apart) == ahead.job("GemmAllReduce", apart.replace(comm_sms=16)) != job
    monkeypatch.setattr(call, "compiled", lambda kernel, cfg: asked.append((kernel, cfg)))
    assert ahead.build(json.loads(json.dumps(job))) is None
    assert asked == [(GemmAllReduce.for_config(inside), inside.replace(comm_sms=1))]

    def refuse(kernel, cfg):
        raise ConfigError("gemm: no")
    monkeypatch.setattr(call, "compiled", refuse)
    assert ahead.build(job).startswith("GemmAllReduce {") and ahead.build(job).endswith("ConfigError: gemm: no")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setattr(ahead.subprocess, "Popen", None)
    assert ahead.start([job])() is None and ahead.start([])() is None


def test_refuses(bench, tmp_path, capsys):
    assert bench.main(["gem"]) == 2 and "no case 'gem'. There are roofs, gemm" in capsys.readouterr().err
    assert bench.main(["gemm", "--seconds", "0.5"]) == 2 and "Give more time" in capsys.readouterr().err
    assert bench.main(["--report", "--results", str(tmp_path)]) == 2 and "no lines" in capsys.readouterr().err
    assert bench.main(["--list"]) == 0 and "micro.py, 2 ranks" in capsys.readouterr().out
