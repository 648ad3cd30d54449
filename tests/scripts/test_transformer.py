"""The transformer's block agrees with float64 on ranks in one process and under mpirun, and is told from wrong ones."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "transformer.py"


def block(*arguments, code=None):
    command = [sys.executable, SCRIPT] if code is None else [sys.executable, "-c", "import sys, transformer\n" + code +
                                                             "\nsys.exit(transformer.guarded('x', transformer.main))"]
    return subprocess.run([*command, *map(str, arguments)], cwd=SCRIPT.parent, capture_output=True, text=True, timeout=150)


def test_four_ranks():
    done = block("--world", 4, "--executor", "interpreter", "--tokens", 90)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "PASS", done.stdout + done.stderr
    assert "executor interpreter, 4 ranks" in done.stdout and "HISTORY" in done.stdout or "bytes, b'" in done.stdout


def test_ranks_under_mpirun(mpirun):
    done = mpirun(2, SCRIPT, "--executor", "interpreter", "--tokens", 61)
    assert done.returncode == 0 and done.stdout.count("PASS") == 1, done.stdout + done.stderr


def test_a_wrong_part_fails():
    """Attention that sees the future; experts that get each other's tokens."""
    for code in ("right = transformer.attention\ntransformer.attention = lambda *a, causal: right(*a, causal=False)",
                 "right = transformer.moe_layer\ntransformer.moe_layer = lambda w, x, i, *a, **k: right(w, x, (i + 1) % 8, *a, **k)"):
        done = block("--world", 1, "--executor", "interpreter", "--tokens", 40, code=code)
        assert done.returncode == 1 and done.stdout.splitlines()[-1] == "FAIL", done.stdout + done.stderr


def test_bad_arguments_are_one_line():
    done = block("--world", 3)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
