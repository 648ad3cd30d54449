"""scripts/run.py as its users run it: rows and exit status, files, ranks in a process and under mpirun, bad requests."""

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ("--m", "72", "--n", "88", "--k", "64", "--executor", "interpreter")


def run(*arguments, cwd=ROOT):
    return subprocess.run([sys.executable, ROOT / "scripts" / "run.py", *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
                          timeout=120)


def rows(done):
    """The table below its header: a list of words for each row."""
    return [line.split() for line in done.stdout.splitlines()[1:]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gemm(dtype):
    done = run("gemm", *SMALL, "--dtype", dtype)
    assert done.returncode == 0, done.stderr
    (row,) = rows(done)
    assert row[:7] == ["gemm", "72", "88", "64", dtype, "1", "interpreter"] and row[-1] == "PASS"
    assert 0 < float(row[7]) < {"bfloat16": 4e-3, "float16": 5e-4, "float32": 2e-3}[dtype]


@pytest.mark.parametrize("op", ["gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm"])
def test_a_row_for_each_number_of_ranks(op):
    done = run(op, *SMALL, "--world", 1, 2, 3, "--iters", 2)
    assert done.returncode == 0, done.stderr
    assert [row[5] for row in rows(done)] == ["1", "2", "3"] and all(row[-1] == "PASS" for row in rows(done))


def test_a_row_for_each_number_of_ranks_under_mpirun(mpirun):
    done = mpirun(3, ROOT / "scripts" / "run.py", "gemm_all_reduce", *SMALL, "--world", 2, 3)
    assert done.returncode == 0, done.stderr
    assert [row[5] for row in rows(done)] == ["2", "3"] and all(row[-1] == "PASS" for row in rows(done))


def test_runs_from_anywhere(tmp_path):
    assert run("gemm", *SMALL, cwd=tmp_path).returncode == 0


def test_config():
    done = run("gemm", *SMALL, "--config", "tile_m=64", "tile_n=64", "consumers=1", "--config", "stages=2")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("m, n, k", [(0, 16, 16), (16, 0, 16), (16, 16, 0), (1, 1, 1)])
@pytest.mark.parametrize("op", ["gemm", "gemm_all_reduce"])
def test_empty_and_smallest(op, m, n, k):
    done = run(op, "--m", m, "--n", n, "--k", k, "--world", 2, "--executor", "interpreter")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 40, 24)).astype(np.float32), rng.standard_normal((24, 32)).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "A.npy", A)
    np.save(tmp_path / "B.npy", B)
    np.savez(tmp_path / "both.npz", A=A, B=B)
    np.savez(tmp_path / "other.npz", X=A)
    np.save(tmp_path / "objects.npy", np.array([[{}]]), allow_pickle=True)
    np.save(tmp_path / "line.npy", A[0, 0])
    np.save(tmp_path / "narrow.npy", B[:8])
    (tmp_path / "text.npy").write_text("no array")
    return tmp_path


@pytest.mark.parametrize("names", [("A.npy", "B.npy"), ("both.npz",)])
def test_input(files, names):
    """A holds a matrix per rank; B, of two dimensions, is every rank's."""
    done = run("gemm_all_reduce", "--world", 2, "--executor", "interpreter", "--input", *(files / n for n in names))
    assert done.returncode == 0, done.stderr
    assert rows(done)[0][1:4] == ["40", "32", "24"]


def input_of(*names):
    return lambda files: ("gemm", "--input", *(files / n for n in names))


@pytest.mark.parametrize("request_of, says", [
    (lambda files: (), "OP"),
    (lambda files: ("gemv",), "gemv"),
    (lambda files: ("gemm", "--m", "many"), "many"),
    (lambda files: ("gemm", "--n", "-1"), "-1"),
    (lambda files: ("gemm", "--iters", "0"), "less than 1"),
    (lambda files: ("gemm", "--world", "0"), "less than 1"),
    (lambda files: ("gemm", "--dtype", "float64"), "float64"),
    (lambda files: ("gemm", "--executor", "abacus"), "abacus"),
    (lambda files: ("gemm", "--config", "tile_m"), "key=value"),
    (lambda files: ("gemm", *SMALL, "--config", "tile_q=1"), "tile_q"),
    (lambda files: ("gemm", *SMALL, "--config", "tile_m=100"), "tile_m = 100"),
    (lambda files: ("gemm", "--m", "1", "--input", files / "both.npz"), "--m"),
    (input_of("missing.npz"), "missing.npz"),
    (input_of("A.npy"), "two .npy"),
    (input_of("A.npy", "text.npy"), "text.npy"),
    (input_of("A.npy", "objects.npy"), "pickle"),
    (input_of("other.npz"), "A"),
    (input_of("A.npy", "line.npy"), "1 dimensions"),
    (input_of("A.npy", "B.npy"), "2 ranks"),
    (lambda files: ("gemm", "--world", 2, "--input", files / "A.npy", files / "narrow.npy", "--executor", "interpreter"), "24"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_request_is_one_line_and_status_2(files, request_of, says):
    done = run(*request_of(files))
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("run.py: ") and says in line


def test_more_ranks_than_mpirun_started(mpirun):
    done = mpirun(2, ROOT / "scripts" / "run.py", "gemm", "--world", 3)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("run.py: ")] == [
        "run.py: --world 3 asks for more ranks than the 2 that mpirun started. See run.py --help."]


def test_a_bad_config_under_mpirun_is_a_line_of_each_rank(mpirun):
    done = mpirun(2, ROOT / "scripts" / "run.py", "gemm_all_reduce", *SMALL, "--config", "tile_m=100")
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("run.py: ")]
    assert said and all("ConfigError" in line and "tile_m = 100" in line for line in said) and "Traceback" not in done.stderr


def test_no_gpu_is_said():
    """Asked for a GPU that is not there, the request cannot be carried out; with one, it passes."""
    done = run("gemm", "--executor", "gpu")
    assert done.returncode == 0 or (done.returncode == 2 and "UnsupportedError" in done.stderr)
