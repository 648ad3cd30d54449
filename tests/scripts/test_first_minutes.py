"""The first five minutes: a wheel that has all of the package, the README pasted into python, help, tab completion, --help."""

import os
import pydoc
import re
import rlcompleter
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pknumba

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the sources."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "pknumba", place / "source" / "pknumba", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, place / "source")
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", "-w", str(place),
                           str(place / "source")], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with nothing but the installed wheel."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check", "--target", str(place),
                           str(wheel)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return place


def test_the_wheel_has_all_of_the_package(wheel):
    there = set(zipfile.ZipFile(wheel).namelist())
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "pknumba").rglob("*")
              if p.is_file() and "__pycache__" not in p.parts and p.suffix in (".py", ".json", ".typed")}
    assert not wanted - there, f"not in the wheel: {sorted(wanted - there)}"
    assert not [n for n in there if n.startswith(("tests", "scripts", "notebooks"))]


def test_readme_pasted_into_python(installed, tmp_path):
    """The first program of the README, line by line as a terminal gets it, with the installed package."""
    text = next(b for b in re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
                if "gemm_all_reduce(" in b)
    typed = text + "\nimport pknumba; print('from', pknumba.__file__); print('done', results[0].shape)\n"
    done = subprocess.run([sys.executable, "-i", "-q"], input=typed, cwd=tmp_path, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(installed), "PYTHONSTARTUP": ""})
    assert "done (256, 192)" in done.stdout and "Error" not in done.stderr, done.stderr[-2000:]
    assert str(installed) in done.stdout


def test_help_is_useful():
    text = pydoc.plain(pydoc.render_doc(pknumba.gemm))
    assert all(word in text for word in ("Args:", "bfloat16", "Returns:", "Raises:")) and len(text) < 4000
    assert "symmetric" in pydoc.plain(pydoc.render_doc(pknumba.World)) and "gemm_all_reduce" in dir(pknumba)


@pytest.mark.parametrize("typed, found", [("pknumba.gemm_all", "pknumba.gemm_all_reduce("), ("pknumba.World.lo", "pknumba.World.local("),
                                          ("pknumba.errors.Sha", "pknumba.errors.ShapeError("), ("pknumba.primi", "pknumba.primitives(")])
def test_tab_completion(typed, found):
    names = rlcompleter.Completer({"pknumba": pknumba})
    offered = [names.complete(typed, i) for i in range(9)]
    assert found in [o and (o if o.endswith("(") else o.rstrip(")") + "(") for o in offered], offered


def test_python_knows_what_was_meant():
    program = "import pknumba; pknumba.primitives.load_async; pknumba.gemm_allreduce"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "has no attribute 'gemm_allreduce'. Did you mean: 'gemm_all_reduce'?" in done.stderr, done.stderr


#: What is run; the others are sourced or imported.
SCRIPTS = sorted(p for p in (ROOT / "scripts").iterdir() if p.is_file() and p.name not in ("env.sh", "Dockerfile")
                 and (p.suffix != ".py" or '__name__ == "__main__"' in p.read_text()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_every_script_explains_itself(path):
    command = [sys.executable, str(path)] if path.suffix == ".py" else ["bash", str(path)]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and len(done.stdout) > 60 and "\033" not in done.stdout, done.stderr


@pytest.mark.parametrize("command", ["check", "doctor", "compile", "timeline", "explain"])
def test_every_command_explains_itself(command):
    done = subprocess.run([sys.executable, "-m", "pknumba", command, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"pknumba {command}" in done.stdout


def test_a_pipe_has_neither_colours_nor_bars(tmp_path):
    done = subprocess.run([sys.executable, "-m", "pknumba", "doctor", "--executor", "interpreter"], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": ""})
    assert done.returncode == 0 and "\033" not in done.stdout + done.stderr and "\r" not in done.stderr
