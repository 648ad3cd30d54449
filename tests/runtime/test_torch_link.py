"""Worlds of torch.distributed ranks: with a stand-in for torch, and with torch where it is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pknumba import World, errors

PROGRAM = Path(__file__).with_name("torch_ranks.py")


def test_without_a_group_it_says_what_to_do():
    with pytest.raises(errors.UnsupportedError, match="init_process_group first, under torchrun"):
        World.torch()


def test_ranks_of_a_stand_in(mpirun, stub_library):
    source = f"import sys; sys.argv[1:] = ['stand-in']; exec(compile(open({str(PROGRAM)!r}).read(), 'ranks', 'exec'))"
    said = mpirun(3, source, env={"PKNUMBA_LIBCUDA": stub_library, "STUB_DEVICES": "2"})
    assert said.count(": fine") == 3 and "rank 2 of 3 on device 0" in said, said


def test_ranks_of_torchrun(stub_library):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
    env = {**os.environ, "PKNUMBA_LIBCUDA": stub_library, "STUB_DEVICES": "2", "OMP_NUM_THREADS": "1",
           "PYTHONPATH": str(PROGRAM.parent.parent.parent)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count(": fine") == 2, done.stdout + done.stderr
