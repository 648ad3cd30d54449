"""scripts/sanitize.py: what it makes of a tool's words. The tool here is a stand-in; the operators run on the interpreter."""

import importlib
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"

TOOL = """#!{python}
import subprocess, sys
out = subprocess.run(sys.argv[sys.argv.index("--print-limit") + 2:], capture_output=True, text=True).stdout
print("========= COMPUTE-SANITIZER")
for line in out.splitlines():
    print(line)
    if line == "#begin gather 1" and "racecheck" in sys.argv:
        print("========= Error: Race reported between Write access at gather+0x10 and Read access at gather+0x20")
        print("=========     and Write access at gather+0x30 in /x/gather.py:7 [8 hazards]")
        print("=========         Host Frame: main")
    if line == "#begin broadcast 1" and "synccheck" in sys.argv:
        sys.exit(7)
print("========= ERROR SUMMARY: 1 error")
"""


@pytest.fixture
def watch(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PKNUMBA_EXECUTOR", "interpreter")
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("sanitize")
    return lambda tool, *names: module.watch(tool, list(names), SimpleNamespace(world=[1], timeout=60))


def test_what_a_tool_says_belongs_to_the_operator_that_ran(watch):
    found = watch("racecheck", "gather", "broadcast")
    assert {name: (verdict, len(said)) for (name, _), (verdict, said, _) in found.items()} == {
        "gather": ("right", 1), "broadcast": ("right", 0)}
    text = ("Error: Race reported between Write access at gather+0x10 and Read access at gather+0x20 "
            "and Write access at gather+0x30 in gather.py:7 [8 hazards]")
    assert importlib.import_module("sanitizer").told(found["gather", 1][1]) == [text]
    assert found["gather", 1][1][0].where == [("gather.py", 7)]


def test_what_did_not_run_is_no_success(watch):
    found = watch("synccheck", "gather", "broadcast")
    assert found["gather", 1][0] == "right" and found["broadcast", 1][0] == "the process ended in it"


def test_what_is_explained_names_its_lines(watch):
    """Rows that the copy engine wrote are read at one line; at any other, under another tool, or without a line, it is a finding."""
    sanitizer = importlib.import_module("sanitizer")
    text = "Uninitialized __global__ memory read of size 16 bytes at MoeSum::communicator+0xb10 in moe_combine.py:{0}"
    source = (SCRIPTS.parent / "pknumba" / "kernels" / "moe_combine.py").read_text().splitlines()
    reads = 1 + next(i for i, line in enumerate(source) if line.strip().startswith("weigh(g.out"))
    why = [sanitizer.explain(tool, sanitizer.Finding(text.format(line), [("moe_combine.py", line)]))
           for tool, line in (("initcheck", reads), ("initcheck", reads - 1), ("memcheck", reads))]
    assert "copy engine has written" in why[0] and why[1:] == [None, None]
    assert sanitizer.explain("initcheck", sanitizer.Finding(text, [])) is None


def test_every_explanation_is_of_lines_that_exist(watch):
    sanitizer = importlib.import_module("sanitizer")
    for known in sanitizer.EXPLAINED:
        for file, lines in known.lines.items():
            texts = {line.strip() for path in sanitizer.PACKAGE.rglob(file) for line in path.read_text().splitlines()}
            assert set(lines) <= texts, (file, lines)
