"""The doctor on a machine without a GPU, on stand-ins for several, and under mpirun."""

import inspect
import json
import os
import subprocess
import sys

import pytest

from pknumba import doctor
from pknumba.doctor import installed
from pknumba.doctor.examination import compared
from pknumba.doctor.operators import operators, ways
from pknumba.runtime import survey

from ..runtime.conftest import mpirun, stub, stub_library  # noqa: F401 - fixtures


def run(*arguments, **env):
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "PKNUMBA_EXECUTOR")}
    return subprocess.run([sys.executable, "-m", "pknumba", "doctor", *arguments], env={**plain, **env}, capture_output=True, text=True,
                          timeout=120)


@pytest.fixture
def quick(monkeypatch):
    """No process of its own to ask MPI, no nvidia-smi."""
    monkeypatch.setattr(doctor.examination, "_mpi", lambda node: {"mpi4py": "4", "library": "some MPI", "mpirun": "",
                                                                       "engines": [["mpi", True, "some MPI, NumPy arrays"]]})
    monkeypatch.setattr(survey, "_smi", lambda *arguments: None)


def of(report, subject):
    return [f for f in report.findings if f.subject == subject]


def test_without_a_gpu_it_is_ready_for_the_interpreter():
    done = run("--json", PKNUMBA_LIBCUDA="/nowhere/libcuda.so")
    data = json.loads(done.stdout)
    assert done.returncode == 0 and data["ok"] and data["executor"] == "interpreter"
    assert "cannot be loaded" in data["gpu"]["error"] and data["mpi"]["mpi4py"]
    assert [name for name, usable, _ in data["mpi"]["engines"] if usable] == ["mpi"], "what carries data between nodes"
    assert {row["operator"] for row in data["operators"]} == set(operators())
    wanted = run("--executor", "gpu", PKNUMBA_LIBCUDA="/nowhere/libcuda.so")
    assert wanted.returncode == 1 and "1 problem" in wanted.stdout and "\033" not in wanted.stdout


def test_every_operator_is_told():
    import pknumba
    public = {n for n in pknumba.__all__ if pknumba._HOMES.get(n) == "kernels" and n[0].islower()
              and "world" in inspect.signature(getattr(pknumba, n)).parameters}
    assert set(operators()) == public
    together = {row["operator"]: row["together"] for row in ways({"executor": "gpu"})}
    assert {n for n, said in together.items() if said == "every rank by itself"} == {"gemm", "grouped_gemm", "attention"}


def test_two_devices_and_their_peers(stub, quick, monkeypatch):
    monkeypatch.setenv("STUB_DEVICES", "2")
    report = doctor.examine()
    gpu = report.facts["gpu"]
    assert report and [d["pci"] for d in gpu["devices"]] == ["00000000:10:00.0", "00000000:11:00.0"]
    assert gpu["peers"] == [["self", "atomics"], ["atomics", "self"]] and gpu["ipc"] == ""
    assert not [line for line in stub.log() if "ulticast" in line], "multicast is asked of the device, never made"
    assert stub.live() == 0 and "from / to" in report.text()


@pytest.mark.parametrize("setting, value, subject", [("STUB_PEERS", "0", "peers"), ("STUB_MAJOR", "8", "device 0"),
                                                     ("STUB_MODE", "2", "device 0")])
def test_what_does_not_work_is_a_problem(stub, quick, monkeypatch, setting, value, subject):
    monkeypatch.setenv("STUB_DEVICES", "2")
    monkeypatch.setenv(setting, value)
    report = doctor.examine()
    assert not report and of(report, subject)[0].level == "bad"


def test_memory_that_cannot_be_shown(stub, quick):
    stub.fail("cuIpcGetMemHandle", 801)
    report = doctor.examine()
    assert not report and "cuIpcGetMemHandle" in of(report, "ipc")[0].text and stub.live() == 0
    assert "threads only" in report.facts["reach"]


def test_links_are_found_by_bus_address(monkeypatch):
    """nvidia-smi numbers all devices, the driver the visible ones: here the second and the third."""
    said = {"--query-gpu=index,pci.bus_id": "0, 00000000:10:00.0\n1, 00000000:11:00.0\n2, 00000000:12:00.0\n",
            "topo": "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\tSYS\t0-3\t0\nGPU1\tNV18\t X \tPIX\t0-3\t0\n"
                    "GPU2\tSYS\tPIX\t X \t0-3\t0\n\nLegend:\n  X = Self\n"}
    monkeypatch.setattr(survey, "_smi", lambda first, *more: said[first])
    assert survey.links(["00000000:11:00.0", "0000:12:00.0"]) == [["X", "PIX"], ["PIX", "X"]]
    monkeypatch.setattr(survey, "_smi", lambda *arguments: None)
    assert survey.links(["00000000:11:00.0"]) is None


def test_clashes():
    good = {"numba-cuda": "0.30.4", "numpy": "2.4.6", "nvidia-nvjitlink": "13.5.37", "mpi4py": "4.1.2"}
    assert installed.clashes(good) == []
    assert "does not import with numpy 2.5" in installed.clashes({**good, "numpy": "2.5.2"})[0]
    assert installed.clashes({"numpy": "2.5.2", "numba-cuda": None}) == [], "matters to numba only"
    assert "no other minor version" in installed.clashes({**good, "numba-cuda": "0.31.0"})[0]


def test_ranks_that_differ():
    facts = {"pknumba": "1", "python": "3.11", "executor": "gpu", "packages": {"numba-cuda": "0.30.4", "numpy": "2.4.6"}}
    assert compared([("a", 0, facts), ("a", 1, facts)]) == []
    found = compared([("a", 0, facts), ("b", 0, {**facts, "executor": "interpreter"})])
    assert [f.subject for f in found] == ["executor"] and found[0].level == "bad"


def test_one_table_for_all_ranks(mpirun, stub_library):
    source = "import sys; from pknumba.__main__ import main; sys.exit(main(['doctor']))"
    said = mpirun(2, source, env={"PKNUMBA_LIBCUDA": stub_library, "STUB_DEVICES": "2", "PATH": os.environ["PATH"]})
    rows = [line.split() for line in said.splitlines()]
    assert said.count("what each operator would do here") == 1 and "2 ranks" in said
    assert [r[0] for r in rows if len(r) == 8 and r[-2] == "gpu"] == ["0", "1"], said
    assert "works (2 MiB of each rank, read by its neighbour)" in said and "ready: pknumba runs here on the GPU" in said
