"""The site builds without a warning, its pictures are current, and what its tables say exists."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pknumba
from pknumba import primitives, runtime, templates, tiles

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the site's generator needs Python 3.11")
def test_builds_without_warnings(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "scripts" / "build_site.py", "--folder", tmp_path], capture_output=True, text=True,
                          timeout=150, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0 and "No issues found" in done.stdout + done.stderr, (done.stdout + done.stderr)[-3000:]
    page = (tmp_path / "site" / "reference" / "operators" / "index.html").read_text()
    public = [n for n, home in pknumba._HOMES.items() if home == "kernels" and n[0].islower()]
    assert public and all(f"{n}</span>" in page or f">{n}<" in page for n in public), "every operator has its place"
    assert "<strong>Raises:</strong> ShapeError" in page and "<p>(K, N), row-major or the transpose" in page, "an entry for each argument"
    notebook = (tmp_path / "site" / "notebooks" / "01_one_tile" / "index.html").read_text()
    assert notebook.count("<summary>Solution</summary>") == 3 and "The code of this picture" in notebook and "language-text" in notebook
    assert "mbarrier.try_wait" in (tmp_path / "site" / "reference" / "primitives" / "index.html").read_text()


def test_pictures_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "pictures.py", "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_troubleshooting_knows_real_messages():
    """Each key is in a message of the package."""
    text = (DOCS / "troubleshooting.md").read_text()
    source = "".join(p.read_text() for p in sorted((ROOT / "pknumba").rglob("*.py")))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)                        # texts that go on in the next line
    keys = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(keys) > 30 and not [k for k in keys if k not in joined], [k for k in keys if k not in joined]


def test_every_error_is_in_the_troubleshooting():
    text = (DOCS / "troubleshooting.md").read_text()
    named = {"RaceError", "DeadlockError", "HangError", "CompileError", "ConfigError", "ContractError", "DriverError"}
    assert not [n for n in named if n not in text] and named <= set(pknumba.errors.__all__)


def test_porting_table_names_what_exists():
    """Every name in the second column is public, a method or a field that a reader finds."""
    known = {*primitives.__all__, *templates.__all__, *pknumba.__all__, *runtime.__all__, *tiles.__all__, "World"}
    known |= {n for c in (pknumba.World, pknumba.SymmetricArray, templates.Template, templates.LCSC, pknumba.GemmAllReduceConfig)
              for n in dir(c)}
    known |= {n for f in (pknumba.gemm_reduce_scatter, primitives.store_async, primitives.all_reduce, tiles.Tile, tiles.Semaphore)
              for n in inspect.signature(f).parameters}
    known |= {"g", "s", "A", "C", "a", "c", "stage", "task", "part", "done", "met", "row", "col", "column", "acc", "b", "add", "N", "step",
              "stages", "number", "epoch", "value", "cfg", "config", "comm_sms", "consumer", "True", "n", "r", "sem", "tiles", "tile",
              "tensor", "coord", "out", "world", "adds", "pk", "panel", "local", "peer", "mpi", "torch"}
    wrong = []
    for line in (DOCS / "porting.md").read_text().splitlines():
        cells = line.split("|")
        if len(cells) == 5 and not set(cells[1].strip()) <= {"-", " "}:
            for code in re.findall(r"`([^`]+)`", cells[2]):
                wrong += [w for w in re.findall(r"[A-Za-z_]\w*", code.replace('"', "")) if w not in known]
    assert not wrong, wrong


def test_a_picture_that_is_not_there_is_found(tmp_path):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import build_site
    finally:
        sys.path.pop(0)
    (tmp_path / "a").mkdir()
    (tmp_path / "x.svg").write_text("")
    (tmp_path / "a" / "index.html").write_text('<img alt="" src="../x.svg"><img src="y.svg">')
    assert build_site.lost_pictures(tmp_path) == ["a/index.html: y.svg"]


def test_docstrings_are_read_entry_by_entry():
    """Several arguments in a line are several entries; words that only look like one are not."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from docstring_style import styled
    finally:
        sys.path.pop(0)
    text = ("What.\n\nArgs:\n    A: (M, K). B: (K, N) or\n        its transpose. Note: no name. x, y: both.\n\nReturns: C.\n\n"
            "Raises: ShapeError.")
    assert styled(text, {"A", "B", "x", "y"}) == (
        "What.\n\nArgs:\n    A: (M, K).\n    B: (K, N) or its transpose. Note: no name.\n    x, y: both.\n\n**Returns:** C.\n\n"
        "**Raises:** ShapeError.")
