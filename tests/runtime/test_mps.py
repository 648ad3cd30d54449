"""scripts/mps, with a stand-in for the service's control program and for mpirun."""

import os
import subprocess

import pytest

from .conftest import ROOT

CONTROL = """#!/bin/bash
# Alive between -d and quit, as a file says.
alive="$CUDA_MPS_PIPE_DIRECTORY/alive"
if [ "$1" = -d ]; then touch "$alive"; echo started${CUDA_VISIBLE_DEVICES:+ with $CUDA_VISIBLE_DEVICES} >> "$DIARY"; exit 0; fi
read -r request
[ -e "$alive" ] || exit 1
[ "$request" != quit ] || { rm "$alive"; echo stopped >> "$DIARY"; }
"""
MPIRUN = """#!/bin/bash
echo "mpirun $*" >> "$DIARY"
echo "share $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" >> "$DIARY"
[ -z "$CUDA_VISIBLE_DEVICES" ] || echo "clients see $CUDA_VISIBLE_DEVICES" >> "$DIARY"
[ -e "$CUDA_MPS_PIPE_DIRECTORY/alive" ] && echo alive >> "$DIARY"
exit ${STATUS:-0}
"""


@pytest.fixture
def mps(tmp_path):
    """mps(*arguments, **environment) -> (exit status, what was printed, the diary's lines)."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("mps", "env.sh"):
        (scripts / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("mpirun", MPIRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    diary = tmp_path / "diary"
    diary.touch()

    def run(*arguments, **environment):
        done = subprocess.run(["bash", str(scripts / "mps"), *arguments], capture_output=True, text=True, timeout=30, env={
            **os.environ, "CUDA_VISIBLE_DEVICES": "", "PKNUMBA_MPS_DIR": str(tmp_path / "mps"), "DIARY": str(diary), **environment})
        return done.returncode, done.stdout + done.stderr, diary.read_text().splitlines()

    return run


def test_run_starts_divides_and_stops(mps):
    status, text, diary = mps("run", "-n", "3", "--", "python", "x.py", "--flag")
    assert status == 0, text
    assert diary[0] == "started" and diary[1].startswith("mpirun -n 3 ") and diary[1].endswith(" python x.py --flag")
    assert diary[2:] == ["share 33", "alive", "stopped"]


def test_it_stops_when_the_command_fails(mps):
    status, text, diary = mps("run", "-n", "2", "false", STATUS="7")
    assert status == 7 and diary[-1] == "stopped"


def test_a_service_started_by_hand_stays(mps):
    assert mps("status")[1] == "mps: not running\n"
    assert mps("start")[0] == 0
    assert "running in" in mps("status")[1]
    assert mps("run", "-n", "2", "x", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="30")[2][-2:] == ["share 30", "alive"]
    assert "alive" not in mps("stop")[1] and mps("status")[1] == "mps: not running\n"
    assert "CUDA_MPS_PIPE_DIRECTORY=" in mps("env")[1]


@pytest.mark.parametrize("service, clients", [("1", "0"), ("3,1", "0,1"), ("GPU-5a", "GPU-5a")])
def test_clients_use_the_numbers_of_the_service(mps, service, clients):
    diary = mps("run", "-n", "2", "x", CUDA_VISIBLE_DEVICES=service)[2]
    assert diary[0] == f"started with {service}" and f"clients see {clients}" in diary


@pytest.mark.parametrize("arguments, text", [
    (("run",), "-n and a number"), (("run", "-n", "0", "x"), "-n and a number"), (("run", "-n", "2"), "needs a command"),
    ((), "multi-process")])
def test_misuse_says_what_is_missing(mps, arguments, text):
    status, said, diary = mps(*arguments)
    assert status == 2 and text in said and not diary


def test_help(mps):
    status, said, _ = mps("--help")
    assert status == 0 and "mps run -n 4" in said
