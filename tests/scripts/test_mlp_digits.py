"""The digits demo: right on any number of ranks, and it fails when a number is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "mlp_digits.py"


def demo(*arguments, code=None):
    command = [sys.executable, SCRIPT] if code is None else [sys.executable, "-c", code]
    return subprocess.run([*command, *map(str, arguments)], cwd=SCRIPT.parent, capture_output=True, text=True, timeout=150)


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_in_one_process(size):
    done = demo("--world", size, "--executor", "interpreter")
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = float(done.stdout.split("accuracy ")[1].split()[0])
    assert accuracy >= 0.95 and done.stdout.splitlines()[-1] == "PASS"
    assert f"executor interpreter, {size} ranks" in done.stdout and "read: 450 of 450 images" in done.stdout


def test_ranks_under_mpirun(mpirun):
    done = mpirun(4, SCRIPT, "--executor", "interpreter")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS") == 1


def test_weights_that_cannot_read_fail():
    done = demo("--world", 1, "--executor", "interpreter", code="import mlp_digits, numpy; from mlp_digits import *\n"
                "mlp_digits.fit = lambda *a: [numpy.zeros((HIDDEN, 64)), numpy.zeros((CLASSES, HIDDEN))]\nsys.exit(main())")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "FAIL"


def test_a_wrong_operator_fails():
    """One score of one image off by a few roundings: the accuracy stays, the agreement with NumPy does not."""
    done = demo("--world", 1, "--executor", "interpreter", code="import mlp_digits; from mlp_digits import *\n"
                "right = mlp_digits.network\n"
                "def wrong(*a):\n    y = right(*a).copy(); y[3, 4] += 1; return y\n"
                "mlp_digits.network = wrong\nsys.exit(main())")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "FAIL"


def test_bad_arguments_are_one_line():
    done = demo("--world", "0")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
