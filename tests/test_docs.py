"""The README and the documents are true: their Python runs, their quotations are in the files, every file they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"# ((?:pknumba|tests)/\S+)\n")


def blocks(path, language):
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def programs(path):
    """(number, program, what the document says that it prints) of the Python blocks that are no quotations."""
    found = BLOCK.findall(path.read_text()) + [("", "")]
    for number, ((kind, text), (next_kind, printed)) in enumerate(zip(found, found[1:])):
        if kind == "python" and not QUOTED.match(text):
            yield number, text, printed if next_kind == "text" else None


def skeleton(text):
    """Text without what changes with a line number or a seed's choices: digits, and how lines are broken."""
    return " ".join(re.sub(r"\d+", "0", text).split())


PROGRAMS = [(name_of(p), *program) for p in DOCUMENTS for program in programs(p)]
QUOTATIONS = [(name_of(p), QUOTED.match(text)[1], text) for p in DOCUMENTS for text in blocks(p, "python") if QUOTED.match(text)]


def test_the_readme_has_both():
    assert any(name == "README.md" for name, *_ in PROGRAMS) and any(name == "README.md" for name, *_ in QUOTATIONS)


@pytest.mark.parametrize("name, number, text, printed", PROGRAMS, ids=[f"{n}-{i}" for n, i, *_ in PROGRAMS])
def test_programs_run(name, number, text, printed, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(text)
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if printed is not None:
        assert skeleton(done.stdout) == skeleton(printed), f"{name} shows another output than:\n{done.stdout}"


@pytest.mark.parametrize("name, source, text", QUOTATIONS, ids=[f"{n}-{s}" for n, s, _ in QUOTATIONS])
def test_quotations_are_in_the_file(name, source, text):
    assert text.split("\n", 1)[1].strip() in (ROOT / source).read_text(), f"{name} quotes {source} as it was"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_named_files_exist(path):
    """Every path in backquotes that begins with a folder of the repository, or names a Markdown file, exists."""
    text = BLOCK.sub("", path.read_text())
    named = re.findall(r"`((?:\./)?(?:pknumba|scripts|tests|docs|benchmarks|\.ci)/[\w./-]*|[A-Z]+\.md|pyproject\.toml)[`\s]", text)
    under_package = re.findall(r"`((?:kernels|templates|primitives|interpreter|lowering|runtime)/[\w./]*)`", text)
    missing = [n for n in named if not (ROOT / n).exists()] + [n for n in under_package if not (ROOT / "pknumba" / n).exists()]
    assert not missing, f"{name_of(path)} names {missing}"


def test_scripts_in_shell_blocks_exist():
    for path in DOCUMENTS:
        for text in blocks(path, "sh"):
            for script in re.findall(r"(?:\./)?((?:scripts|benchmarks|\.ci)/[\w.]+)", text):
                assert (ROOT / script).exists(), f"{name_of(path)} runs {script}"


def test_table_of_results_is_current():
    for path in ("README.md", "docs/performance.md"):
        done = subprocess.run([sys.executable, "benchmarks/table.py", "--check", path], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"run: python benchmarks/table.py --write {path}"


def test_decisions_are_counted():
    """Each has a number of its own, which its title says, none is left out, and what documents call a decision is there."""
    pages = {int(page.name[:4]): page for page in sorted((ROOT / "docs" / "decisions").glob("0*.md"))}
    assert sorted(pages) == list(range(1, len(pages) + 1)) and len(pages) == len(list((ROOT / "docs" / "decisions").glob("0*.md")))
    assert all(page.read_text().startswith(f"# {number}. ") for number, page in pages.items())
    named = {int(number) for path in [*DOCUMENTS, ROOT / "CHANGELOG.md"] for number in re.findall(r"decision (\d+)", path.read_text())}
    assert named <= set(pages), named - set(pages)
