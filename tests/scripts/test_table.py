"""benchmarks/table.py: the newest line of a case wins, each kind has its section; a table in a file is replaced, checked, or refused."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "table.py"
LINE = dict(op="gemm", shape=[64, 64, 64], dtype="bfloat16", world=1, gpus=1, executor="gpu", baseline="cublas", ratio=1.0, time_us=10.0,
            baseline_us=10.0, rel_error=1.7e-3, card="H200", driver="1", versions={}, commit="abc", command="python x", tflops=700)


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("table", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SOURCE.parent))
    spec.loader.exec_module(module)
    sys.path.pop(0)                                     # scripts/ has files of the same names as benchmarks/
    return module


def test_newest_of_each_case(table, tmp_path):
    lines = [LINE, {**LINE, "world": 2}, {**LINE, "time_us": 1500.0, "ratio": 1.25}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    head, _, *rows = table.table(table.newest(tmp_path)).splitlines()[2:]
    assert len(rows) == 2 and "1.50 ms" in rows[0] and "| 1.25 |" in rows[0] and "2 / 1" in rows[1]
    assert all(row.count("|") == head.count("|") for row in rows)
    assert table.table([]) == "Nothing has been measured yet."


def test_headlines(table):
    """Of an operator a few shapes, against others' work only, of one that is not listed the largest."""
    new = {**LINE, "op": "weave", "baseline": "torch.weave"}
    lines = [LINE, {**LINE, "shape": [8192] * 3}, {**LINE, "shape": [8192] * 3, "layout": "nn"}, {**LINE, "shape": [4096] * 3, "world": 2},
             {**LINE, "shape": [4096] * 3, "dtype": "float16"}, new, {**new, "shape": [64, 64, 65]}, {**new, "op": "weave (loose)"},
             {**new, "shape": [640, 64, 65], "baseline": "ours"}]
    assert [(r["op"], r["shape"]) for r in table.headlines(lines)] == [("gemm", [8192] * 3), ("weave", [64, 64, 65])]


def test_sections(table, tmp_path):
    """Each kind of result has a section, which says once what its rows share; every row and command is there, micro rows in their own."""
    apart = {**LINE, "op": "gemm_all_reduce", "world": 2, "gpus": 2, "baseline": "cublas + NCCL"}
    lines = [{**LINE, "shape": [256, 64, 64]}, LINE, {**LINE, "dtype": "float32"}, apart, {**apart, "op": "all_reduce (new)", "gpus": 1},
             {**LINE, "op": "gemm that records its timeline"}, {**LINE, "op": "launch, step by step", "driver_us": 4.8},
             {**LINE, "op": "juggling", "command": "python y", "baseline": None, "baseline_us": None, "ratio": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = table.sections(tmp_path)
    parts = {part.splitlines()[0]: part for part in text.split("### ")[1:]}
    assert list(parts) == ["gemm on one GPU, bfloat16", "gemm on one GPU, other dtypes", "Products that communicate, a GPU for each rank",
                           "Collectives, ranks that share a GPU", "Time of the host", "What recording and bounded waits cost", "Others"]
    first = parts["gemm on one GPU, bfloat16"]
    assert "All rows: bfloat16, ranks / GPUs 1 / 1, TFLOP/s 700, against cublas, its time 10.0 µs, ratio 1.00, rel. error 1.7e-03" in first
    assert first.index("| 64 x 64 x 64 |") < first.index("| 256 x 64 x 64 |") and "| operator | shape | time | commit |" in first
    assert "`mpirun -n 2 python x`" in parts["Products that communicate, a GPU for each rank"]
    assert "`./scripts/mps run -n 2 python x`" in parts["Collectives, ranks that share a GPU"] and "`python y`" in parts["Others"]
    assert "more driver 4.8 µs" in parts["Time of the host"] and "micro" not in text and "against" not in parts["Others"]
    micro = dict(op="micro: tma store", layout="SMs", points=[[1, 9.0, 100.0], [8, 4.0, 330.0]])
    (tmp_path / "b.jsonl").write_text(json.dumps({**LINE, **micro, "world": 2}) + "\n")
    text = table.sections(tmp_path)
    assert text.endswith("Made by `./scripts/mps run -n 2 python x`.") and "| tma store | 2 / 1 | 330 | 350.01 |" in text
    assert "Others" in text and "juggling" in text and text.count("tma store") == 1


def test_rivals_over_ranks(table, tmp_path):
    """Layers over GPUs have sections of their own, a row for each rival; one that did not run is named with its reason, until it does."""
    apart = {**LINE, "world": 2, "gpus": 2}
    ring = {**apart, "op": "ring_attention", "shape": [1, 16, 16, 32768, 128], "layout": "causal", "baseline": "NCCL ring"}
    gone = {**ring, "baseline": "NCCL all-gather", "baseline_us": None, "ratio": None, "not_run": "RuntimeError: a | b"}
    layer = {**apart, "op": "moe_layer", "shape": [64, 2, 8, 64, 64], "baseline": "torch and NCCL", "rival_compiled": "eager"}
    symmetric = {**apart, "op": "gemm_reduce_scatter", "baseline": "torch symm_mem"}
    lines = [ring, gone, {**ring, "gpus": 1, "baseline": None, "baseline_us": None, "ratio": None}, layer, symmetric]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    parts = {part.splitlines()[0]: part for part in table.sections(tmp_path).split("### ")[1:]}
    assert list(parts) == ["Attention over ranks, a GPU for each rank", "Attention", "Experts over ranks, a GPU for each rank",
                           "Products that communicate, a GPU for each rank"]
    first = parts["Attention over ranks, a GPU for each rank"]
    assert "| NCCL all-gather: not run, RuntimeError: a / b | - | - |" in first and "| NCCL ring | 10.0 µs | 1.00 |" in first
    assert "ring_attention, causal" in first and "more its small kernels by eager" in parts["Experts over ranks, a GPU for each rank"]
    assert [r["baseline"] for r in table.headlines([ring, gone])] == ["NCCL ring"]
    (tmp_path / "b.jsonl").write_text(json.dumps({**gone, "baseline_us": 12.0, "not_run": None}) + "\n")
    assert "not run" not in table.sections(tmp_path) and "| NCCL all-gather | 12.0 µs |" in table.sections(tmp_path)


def test_replaced(table):
    text = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    new = table.replaced(text, "| new |")
    assert new == f"before\n{table.BEGIN}\n| new |\n{table.END}\nafter\n" and table.replaced(new, "| new |") == new
    with pytest.raises(ValueError):
        table.replaced("no markers", "x")


def test_committed_results_have_every_field():
    needed = {"op", "shape", "dtype", "world", "gpus", "executor", "baseline", "ratio", "time_us", "rel_error", "card", "driver",
              "versions", "commit", "command"}
    for path in sorted((SOURCE.parent / "results").glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            missing = needed - set(json.loads(line))
            assert not missing, f"{path.name}:{number} lacks {missing}"
