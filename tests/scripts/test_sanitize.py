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
out = subprocess.run(sys.argv[sys.argv.index("50") + 1:], capture_output=True, text=True).stdout
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
    """Two writes to the word that pins arithmetic are no fault; at any other line, or without a line, they are."""
    sanitizer = importlib.import_module("sanitizer")
    text = "Error: Race reported between Write access at attention+0x5770 in attention.py:{0} and Write access at attention+0x5770 in " \
           "attention.py:{0} [256 hazards]"
    source = (SCRIPTS.parent / "pknumba" / "kernels" / "attention.py").read_text().splitlines()
    pins = 1 + next(i for i, line in enumerate(source) if "mma_wait(o, 0, p, total)" in line)
    why = [sanitizer.explain(tool, sanitizer.Finding(text.format(line), [("attention.py", line)] * 2))
           for tool, line in (("racecheck", pins), ("racecheck", pins + 1), ("memcheck", pins))]
    assert "one word that nobody reads" in why[0] and why[1:] == [None, None]
    assert sanitizer.explain("racecheck", sanitizer.Finding(text, [])) is None


def test_every_explanation_is_of_lines_that_exist(watch):
    sanitizer = importlib.import_module("sanitizer")
    for known in sanitizer.EXPLAINED:
        for file, lines in known.lines.items():
            texts = {line.strip() for path in sanitizer.PACKAGE.rglob(file) for line in path.read_text().splitlines()}
            assert set(lines) <= texts, (file, lines)
