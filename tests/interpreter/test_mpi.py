"""Ranks as MPI processes: values, and deadlocks and failures that every rank learns of."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
MPIRUN = Path(sys.executable).parent / "mpirun"
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not MPIRUN.exists(), reason="no mpirun beside this Python")
ENVIRONMENT = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_osc="^ucx",
                   PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def ranks(case, n, timeout=60):
    """{rank: what it said} of `n` processes."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([MPIRUN, "-n", str(n), sys.executable, "-m", "tests.interpreter.mpi_ranks", case, folder], cwd=ROOT,
                              text=True, env={**os.environ, **ENVIRONMENT}, capture_output=True, timeout=timeout)
        said = {int(path.name): path.read_text() for path in Path(folder).iterdir()}
    assert len(said) == n, done.stdout + done.stderr
    return said


@pytest.mark.parametrize("n", [1, 2, 4])
def test_exact(n):
    said = ranks("exact", n)
    assert len(said) == n and all(text.startswith("ok") for text in said.values()), said


@pytest.mark.parametrize("case", ["reductions", "part"])
def test_memory(case):
    said = ranks(case, 3)
    assert len(said) == 3 and all(text.startswith("ok") for text in said.values()), said


@pytest.mark.parametrize("case", ["lost_signal", "lost_arrive"])
def test_deadlock_is_found_on_all_ranks(case):
    said = ranks(case, 3)
    assert len(said) == 3
    for text in said.values():
        assert text.startswith("DeadlockError deadlock across 3 ranks")
        assert all(f"rank {r} block" in text for r in range(3)), text
        assert "ready[1]" in text if case == "lost_signal" else "ab_empty[1]" in text


def test_deadlock_with_host_code():
    said = ranks("outside", 3)
    assert said[0].startswith("DeadlockError") and "never[1] of rank 0 >= 7 (is 0" in said[0], said
    assert all(f"rank {r} waits in host code for rank 0." in said[0] for r in (1, 2)), said
    assert all("never[1] of rank 0 >= 7" in said[r] for r in (1, 2))


def test_deadlock_with_a_rank_that_ended():
    said = ranks("ended", 3)
    assert said[2].startswith("ok")
    for r in (0, 1):
        assert said[r].startswith("DeadlockError") and "rank 2 has ended" in said[r], said


def test_a_rank_that_raises_is_named_by_the_others():
    said = ranks("leaving", 3)
    assert all(said[r].startswith("WorldError World: rank 2 failed: KeyError: 'in host code'") for r in (0, 1)), said
    said = ranks("raising", 3)
    assert said[2].startswith("ValueError something broke")
    for r in (0, 1):
        assert said[r].startswith("WorldError World: rank 2 failed: ValueError: something broke"), said
