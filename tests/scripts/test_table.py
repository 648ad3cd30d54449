"""benchmarks/table.py: the newest line of a case wins, and a table in a file is replaced, checked, or refused."""

import importlib.util
import json
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "table.py"
LINE = dict(op="gemm", shape=[64, 64, 64], dtype="bfloat16", world=1, gpus=1, executor="gpu", baseline="cublas", ratio=1.0, time_us=10.0,
            baseline_us=10.0, rel_error=1.7e-3, card="H200", driver="1", versions={}, commit="abc", command="python x", tflops=700)


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("table", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_newest_of_each_case(table, tmp_path):
    lines = [LINE, {**LINE, "world": 2}, {**LINE, "time_us": 1500.0, "ratio": 1.25}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = table.table(tmp_path).splitlines()[2:]
    assert len(rows) == 2 and "1.50 ms" in rows[0] and "| 1.25 |" in rows[0] and "2 / 1" in rows[1]
    assert all(row.count("|") == table.HEAD.splitlines()[0].count("|") for row in rows)


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
