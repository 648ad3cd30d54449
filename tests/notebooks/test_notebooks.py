"""The notebooks run on the CPU, each cell, and their .ipynb say what they say; wrong answers are told from right ones."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from pknumba.errors import PknumbaError
from pknumba.teaching import Drawing, Tiny, TinyConfig, check, measure, run

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted(p.stem for p in (ROOT / "notebooks").glob("[0-9]*.py"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_and_is_current(name):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks.py", "--check", name], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_teaches(name):
    """A picture, an exercise that says "not yet" and is right in the cell after it, and a score of bytes or time."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    said = [[o["data"].get("text/plain", "") for o in c.get("outputs", []) if "data" in o] for c in notebook.cells]
    printed = "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))
    solutions = [i for i, c in enumerate(notebook.cells) if "solution" in c.metadata.get("tags", ())]
    assert any("a picture" in s for s in said) and len(solutions) >= 2
    for i in solutions:
        assert said[i][-1].startswith("right"), f"{name}, cell {i}: {said[i]}"
    attempts = [i for i, s in enumerate(said) if s and s[-1].startswith("not yet")]
    assert len(attempts) >= 2 and all(any(j > i for j in solutions) for i in attempts)
    if name[:2] != "07":
        assert "µs" in printed or any("µs" in t for s in said for t in s), f"{name}: no score"
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= 45 and not any(len(line) > 140 for line in cell.source.splitlines()), cell.source[:100]


def test_answers_are_told_apart():
    square = [(np.arange(4), 3), (np.arange(6.0), 2)]
    assert check(lambda x, n: x * n, lambda x, n: n * x, *square)
    assert not check(lambda x, n: x + n, lambda x, n: n * x, *square)
    assert not check(lambda x, n: (x * n)[:-1], lambda x, n: n * x, *square), "another shape"
    for dots in (lambda x, n: ..., lambda x, n: next(iter([...]))[0], ...):
        assert "replace the dots" in repr(check(dots, lambda x, n: x, *square))
    assert "ZeroDivisionError" in repr(check(lambda x, n: n / 0, lambda x, n: x, *square))


class Wrong(Tiny):
    """Its definition is another than what it does."""

    @staticmethod
    def definition(X):
        return [-x for x in X]


def test_kernels_are_checked_and_measured():
    good, wrong = check(Tiny, seeds=3), check(Wrong, seeds=3)
    assert good and good.score.moved["own read"] == good.score.moved["own written"] == 5 * 64 * 8 * 4
    assert not wrong and "WrongResult" in repr(wrong)
    slow, fast = (measure(Tiny, stages=n, tiles=8, sms=1).seconds for n in (1, 4))
    assert fast < 0.75 * slow, "more buffers hide latency"
    assert "<svg" in good.score.picture("t")._repr_svg_()


@pytest.mark.ptx
def test_the_tiny_kernel_is_a_real_one():
    from pknumba import lowering
    cubin, record = lowering.build(Tiny.plan(TinyConfig()))
    assert record["spill"] == 0 and cubin[:4] == b"\x7fELF"


def test_results_of_both_executors_are_compared(monkeypatch):
    """Here the interpreter stands in for the GPU: once with what it gives, once with a rank that gives something else."""
    from pknumba.teaching import exercise
    local = exercise.World.local
    monkeypatch.setattr(exercise.World, "local", lambda n, executor, **more: local(n, executor="interpreter", **more))
    monkeypatch.setattr(exercise.driver, "device_info", lambda n: SimpleNamespace(name="a stand-in"))
    calls = []

    def program(world):
        calls.append(world.rank)
        return np.ones((2, 3)), np.full(4, wrong if len(calls) == 4 else 1.0)
    wrong = 1.0
    assert run(program, 2, gpu=True).seconds >= 0 and len(calls) == 4
    wrong, calls[:] = 1.5, []
    with pytest.raises(PknumbaError, match="rank 1 has another result on the GPU"):
        run(program, 2, gpu=True)


def test_programs_are_metered():
    from pknumba import all_gather
    score = run(lambda world: all_gather(world, world.asarray(np.full((8, 8), world.rank, np.float32))), 3, gpu=False)
    assert score.to_peers == 3 * 2 * 8 * 8 * 4 and [v[8, 0] for v in score.values] == [1, 1, 1] and score.seconds > 0


def test_drawings():
    d = Drawing(100, 50, "a < b").box(1, 2, 30, 20, "x\ny", "role").row(0, 0, "ab").arrow(1, 2, 3, 4, "to")
    lengths = [float(w) for w in re.findall(r'width="([\d.]+)" height="20"', Drawing(9, 9).bars(0, 0, {"a": 1, "b": 4}, 100).text)]
    assert lengths == [25, 100]
    text = d._repr_svg_()
    assert text.startswith("<svg") and text.count("<rect") == 4 and "a &lt; b" in text and "marker-end" in text
