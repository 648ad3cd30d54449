"""The examples of docs/deployment.md, as they are written there, on two hosts."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..runtime.conftest import stub_library  # noqa: F401 - a fixture
from .conftest import ENV, HERE, OWN, ROOT, TCP, command_of_mpirun

PAGE = (ROOT / "docs/deployment.md").read_text()


def block(language, begins=""):
    """A block of the page."""
    return next(text for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if text.startswith(begins))


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*OWN, "SLURM"))}
    return {**kept, **ENV, "PKNUMBA_EXECUTOR": "interpreter", "PKNUMBA_HOST_LIMIT_S": "30", **more}


def check(done):
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"World\(rank (\d) of 4 on 2 nodes, interpreter, engine mpi\) sum 10.0 sent 2000", done.stdout)
    assert sorted(said) == ["0", "1", "2", "3"], done.stdout + done.stderr


@pytest.fixture
def program(tmp_path):
    """The page's program and host file in a folder, and its Python first on PATH."""
    (tmp_path / "program.py").write_text(block("python"))
    (tmp_path / "hosts.txt").write_text(block("ini"))
    return tmp_path


def test_mpirun(namespaces, program):
    words = shlex.split(block("sh", "mpirun"))
    assert words[:3] == ["mpirun", "--hostfile", "hosts"] and words[-2:] == ["python", "program.py"]
    words[2], words[-2:] = str(program / "hosts.txt"), [sys.executable, str(program / "program.py")]
    agent = ["--prtemca", "plm_ssh_agent", str(program / "agent"), "-x", "PYTHONPATH", "-x", "PKNUMBA_EXECUTOR"]
    command = ["bash", str(HERE / "hosts.sh"), str(program), command_of_mpirun(), *agent, *TCP[:6], *words[1:]]
    check(subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120))


def test_srun(namespaces, program):
    if os.getuid() or not all(map(shutil.which, ("srun", "slurmd", "slurmctld"))):
        pytest.skip("no Slurm, or not root: packages slurm-client, slurmctld, slurmd, libpmix-dev")
    if not Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so").exists():
        pytest.skip("Slurm finds no PMIx: package libpmix-dev")
    words = shlex.split(block("sh", "srun"))
    assert words[-2:] == ["python", "program.py"]
    words[-2:] = [sys.executable, str(program / "program.py")]
    command = ["bash", str(HERE / "hosts.sh"), str(program), str(HERE / "slurm.sh"), str(program), *words]
    env = environment(HOSTS_USER="", OMPI_MCA_pml="ob1", OMPI_MCA_btl="self,sm,tcp")
    check(subprocess.run(command, env=env, capture_output=True, text=True, timeout=120))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch: it brings torchrun")
def test_torchrun(namespaces, program, stub_library):  # noqa: F811
    """The page's command on each host: two ranks there meet the two of the other, and exchange device memory, by stand-ins for libcuda and
    NCCL; kernels need GPUs."""
    words = shlex.split(block("sh", "torchrun"))
    assert words[0] == "torchrun" and words[-1] == "program.py" and words[3:5] == ["--nproc-per-node", "8"]
    words[0], words[4], words[-1] = f"{sys.executable} -m torch.distributed.run", "2", str(HERE / "on_torch_hosts.py")
    both = program / "both"
    both.write_text(f"{program}/agent beta {' '.join(words)} & {' '.join(words)} && wait $!")
    env = environment(PKNUMBA_LIBCUDA=stub_library, STUB_DEVICES="4", PYTHONPATH=f"{HERE / 'stand_in'}:{ROOT}", PYTHONWARNINGS="ignore")
    done = subprocess.run(["bash", str(HERE / "hosts.sh"), str(program), "bash", str(both)], env=env, capture_output=True, text=True,
                          timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(re.findall(r"rank \d of .*: sent \d+", done.stdout))
    assert said == [f"rank {r} of ['alpha', 'beta'] on node {r // 2} with {((0, 1), (2, 3))[r // 2]}: sent 8000" for r in range(4)], said


def test_dockerfile():
    """Its shell lines parse, what it copies exists and is all that the package is built of, its extra is one of pyproject.toml's."""
    words = block("sh", "docker build").splitlines()[0].split()
    text = (ROOT / words[words.index("-f") + 1]).read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    copied = {name for kind, rest in steps if kind == "COPY" for name in rest.split()[:-1]}
    project = (ROOT / "pyproject.toml").read_text()
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "pknumba", re.search(r'^readme = "(.*)"', project, re.MULTILINE)[1]} <= copied
    extra = next(rest for kind, rest in steps if kind == "ARG").split("=")[1]
    assert re.search(rf"^{extra} = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE)
    for kind, rest in steps:
        assert kind in ("FROM", "RUN", "ARG", "COPY", "ENV"), kind
        if kind == "RUN":
            subprocess.run(["bash", "-n", "-c", rest], check=True)


def test_run_py_on_pretended_nodes():
    """The bound of its check knows that what nodes send each other is rounded once more."""
    command = [sys.executable, "scripts/run.py", "gemm_all_reduce", "--world", "4", "--m", "64", "--n", "64", "--k", "64"]
    done = subprocess.run(command, cwd=ROOT, env=environment(PKNUMBA_NODE_SIZE="2"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("PASS") == 1, done.stdout + done.stderr
