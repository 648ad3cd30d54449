"""What tests of several folders use: programs under mpirun, with the environment that the scripts set."""

import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_finish():
    """What is there now stays: the collector of cycles need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session")
def mpirun():
    """Function (ranks, *arguments of python, timeout=120) -> CompletedProcess with text; skips where there is no mpirun."""
    beside = Path(sys.executable).with_name("mpirun")
    if not beside.exists() and not shutil.which("mpirun"):
        pytest.skip("no mpirun")

    def run(ranks, *arguments, timeout=120):
        command = 'source scripts/env.sh; PATH="$1:$PATH"; ranks=$2; shift 2; exec mpirun -n "$ranks" "$@"'
        # Tests that themselves run under mpirun must not pass its variables on.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMIX_", "PMI_", "PRTE_LAUNCHED"))}
        return subprocess.run(["bash", "-c", command, "mpirun", str(beside.parent), str(ranks), sys.executable, *map(str, arguments)],
                              cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    return run
