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
out = subprocess.run(sys.argv[sys.argv.index("20") + 1:], capture_output=True, text=True).stdout
print("========= COMPUTE-SANITIZER")
for line in out.splitlines():
    print(line)
    if line == "#begin gather 1" and "racecheck" in sys.argv:
        print("========= Error: Race reported between Write access at gather+0x10 and Read access at gather+0x20")
        print("=========     Host Frame: main")
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
    assert found["gather", 1][1][0].startswith("Error: Race reported between Write access at gather")


def test_what_did_not_run_is_no_success(watch):
    found = watch("synccheck", "gather", "broadcast")
    assert found["gather", 1][0] == "right" and found["broadcast", 1][0] == "the process ended in it"
