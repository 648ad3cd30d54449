"""docs/faults.md: every test that it names exists, and every test of this folder stands in it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def defined(paths):
    return {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}


def test_rows_and_tests_agree():
    text = (ROOT / "docs" / "faults.md").read_text()
    lines = text.splitlines()
    heads = {n for n, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for n, line in enumerate(lines) if line.startswith("|") and not {n, n + 1} & heads]
    named = set(re.findall(r"`(test_\w+)`", text))
    assert all(re.search(r"`test_\w+`", row) for row in rows) and len(rows) >= 19
    assert not named - defined((ROOT / "tests").rglob("test_*.py"))
    here = defined(p for p in Path(__file__).parent.glob("test_*.py") if p.name != "test_table.py")
    assert not here - named, "tests without a row"
