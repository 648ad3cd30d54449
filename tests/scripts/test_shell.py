"""The shell scripts: what they say when they cannot work, and that nothing is installed twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ("scripts/setup", "scripts/demo", "scripts/test", "scripts/mps", "scripts/env.sh", ".ci/run")


def bash(*arguments, **environment):
    return subprocess.run(["bash", *map(str, arguments)], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)


@pytest.fixture
def checkout(tmp_path):
    """A folder with nothing but the scripts and what they read."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_syntax_and_mode(script):
    assert bash("-n", ROOT / script).returncode == 0
    assert script.endswith(".sh") or os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("script", ["setup", "demo", "test"])
def test_no_suitable_python(checkout, script):
    done = bash(checkout / "scripts" / script, PYTHON="no-such-python")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "no-such-python" in line and "3.10 to 3.13" in line


def test_a_python_too_old(checkout):
    old = checkout / "old-python"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo Python 3.9.18\nexit 1\n")
    old.chmod(0o755)
    done = bash(checkout / "scripts" / "setup", PYTHON=str(old))
    assert done.returncode == 2 and "Python 3.9.18" in done.stderr


def test_what_is_installed_is_left_alone(checkout):
    """With the stamp of this checkout and this pyproject.toml, set-up says and does nothing; with another one it starts."""
    place = checkout / ".venv" / "bin"
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    checksum = subprocess.run(["cksum"], input=(checkout / "pyproject.toml").read_bytes(), capture_output=True).stdout.decode().strip()
    stamp = checkout / ".venv" / ".pknumba-installed"
    stamp.write_text(f"{checkout} {checksum}\n")
    done = bash(checkout / "scripts" / "setup", PYTHON="no-such-python")
    assert done.returncode == 0 and done.stdout == done.stderr == ""
    stamp.write_text(f"/elsewhere {checksum}\n")
    assert bash(checkout / "scripts" / "setup", PYTHON="no-such-python").returncode == 2


def test_demo_wants_a_number(checkout):
    (checkout / "scripts" / "setup").write_text("#!/bin/sh\n")
    done = bash(checkout / "scripts" / "demo", "many")
    assert done.returncode == 2 and done.stderr == "demo: 'many' is no number of ranks\n"
