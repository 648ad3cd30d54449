"""The notebooks run on the CPU, each cell, and their .ipynb say what they say; wrong answers are told from right ones."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

from pknumba import CommConfig, GemmAllReduce, all_gather
from pknumba.checking import timeline
from pknumba.errors import PknumbaError
from pknumba.teaching import Drawing, Tiny, TinyConfig, check, measure, run

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted(p.stem for p in (ROOT / "notebooks").glob("[0-9]*.py"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_runs_and_is_current(name):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "notebooks.py", "--check", name], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def steps(notebook):
    """{heading: cells} of the steps of a notebook: what follows each heading of the second level."""
    found, heading = {}, None
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            heading = cell.source.partition("\n")[0]
        if heading:
            found.setdefault(heading, []).append(cell)
    return found


def said(cell):
    """What a cell shows last, "a picture" for one."""
    return [o["data"]["text/plain"] for o in cell.get("outputs", []) if "data" in o]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_step_has_a_picture_and_an_exercise(name):
    """An exercise says "not yet", and a cell after it has the solution, which is right."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    assert len(steps(notebook)) >= 3
    for heading, cells in steps(notebook).items():
        solved = [i for i, c in enumerate(cells) if "solution" in c.metadata.get("tags", ())]
        open_ = [i for i, c in enumerate(cells) if any(s.startswith("not yet") for s in said(c))]
        assert any("a picture" in said(c) for c in cells), f"{name}, {heading}: no picture"
        assert open_ and len(solved) >= len(open_) and all(any(j > i for j in solved) for i in open_), f"{name}, {heading}: an exercise"
        assert all(said(cells[i])[-1].startswith("right") for i in solved), f"{name}, {heading}: a solution is not right"
        assert sum(c.source.count("**Exercise.**") for c in cells if c.cell_type == "markdown") == len(open_), f"{name}, {heading}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_each_has_a_score_and_short_cells(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    printed = [o.get("text", "") for c in notebook.cells for o in c.get("outputs", [])]
    shown = "".join(printed + [s for c in notebook.cells for s in said(c)])
    assert "µs" in shown or name[:2] == "07", f"{name}: no score"
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
    extended = check(GemmAllReduce, ranks=2, seeds=1)
    assert extended and "1 schedules, exact results" in repr(extended) and extended.score is None, "no toy to measure"
    slow, fast = (measure(Tiny, stages=n, tiles=8, sms=1).seconds for n in (1, 4))
    assert fast < 0.75 * slow, "more buffers hide latency"
    assert "<svg" in good.score.picture("t")._repr_svg_() and " µs</text>" in good.score.picture("t").text


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
    score = run(lambda world: all_gather(world, world.asarray(np.full((8, 8), world.rank, np.float32))), 3, gpu=False)
    assert score.to_peers == 3 * 2 * 8 * 8 * 4 and [v[8, 0] for v in score.values] == [1, 1, 1] and score.seconds > 0


def test_of_many_workers_one_is_drawn():
    """In the order of their numbers, and with how many there are."""
    ones, config = np.ones((256, 64), np.float32), CommConfig(warps=12)
    score = run(lambda world: all_gather(world, world.asarray(ones), config=config), 2, sms=1, gpu=False)
    text = score.picture("t").text
    assert "communicator 0 (+11)</text>" in text and "communicator 1" not in text.replace("block 1", "")
    found = timeline.svg(score.events, "t", last=10**9)
    assert found.index("communicator 9</text>") < found.index("communicator 10</text>")


def test_drawings():
    d = Drawing(100, 50, "a < b").box(1, 2, 30, 20, "x\ny", "role").row(0, 0, "ab").arrow(1, 2, 3, 4, "to")
    lengths = [float(w) for w in re.findall(r'width="([\d.]+)" height="20"', Drawing(9, 9).bars(0, 0, {"a": 1, "b": 4}, 100).text)]
    assert lengths == [25, 100]
    text = d._repr_svg_()
    assert text.startswith("<svg") and text.count("<rect") == 4 and "a &lt; b" in text and "marker-end" in text
