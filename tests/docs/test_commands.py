"""Every command that the documents print runs as printed: in a folder that has the repository's folders and a kernels.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
#: tests/nodes runs what deployment.md shows, on two hosts.
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "notebooks").glob("*.md")),
             *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.name != "deployment.md")]
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Blocks that show what a terminal says: what was typed begins with a dollar.
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What has its own tests (tests/scripts/test_shell.py, tests/checking/test_command.py, test_mps.py, tests/ahead), needs a GPU, or writes
#: to the repository.
ELSEWHERE = ("./scripts/demo", "./scripts/test", "./scripts/setup", "source .venv/bin/activate", "./scripts/mps", "python benchmarks/",
             "mpirun -n 2 python benchmarks/", "jupyter ", "pip install", "PKNUMBA_BUNDLE=", "python -m pknumba check turn.py:",
             "python -m pknumba check kernels.py:MyKernel --mutate")
#: What needs a GPU, and is run on one by tests/gpu/test_documents_gpu.py.
MEASURES = (" --gpu", "scripts/tune.py", "python -m benchmarks", "torchrun ")
#: Commands that go on for as long as there is something to try: here for a second.
ENDLESS = "python -m pknumba check"
#: What a reader has written when he is told to check kernels.py.
KERNELS = '''
import ml_dtypes
import numpy as np
from pknumba import Gemm, GemmAllReduce, gemm_all_reduce
from pknumba.primitives import signal, store_async_wait


class MyKernel(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        signal(g.done, task.id, task.owner)


def main(world):
    A = np.ones((40, 24), ml_dtypes.bfloat16)
    assert (gemm_all_reduce(world, A, A.T.copy()) == 24 * world.size).all()
'''


def commands(wanted):
    """{command: document} of every line of the shell blocks that is wanted(command), each once."""
    seen = {}
    for path in DOCUMENTS:
        text = path.read_text()
        typed = ["\n".join(re.findall(r"^\$ (.*)$", shown, re.MULTILINE)) for shown in CONSOLE.findall(text)]
        for block in SHELL.findall(text) + typed:
            for line in block.replace("\\\n", " ").splitlines():
                command = line.split("  #")[0].strip()
                if command and not command.startswith("#") and wanted(command):
                    seen.setdefault(command, path.relative_to(ROOT).as_posix())
    return seen


def parameters(wanted):
    """The same as parameters of a test."""
    return [pytest.param(command, id=f"{where}: {command}"[:110]) for command, where in commands(wanted).items()]


def reader(place):
    """Make a folder one in which the documents' commands find what they name, and may write."""
    for name in ("scripts", "docs", "tests", "benchmarks", "notebooks", "README.md", "mkdocs.yml", "pyproject.toml", "pknumba"):
        if (ROOT / name).exists():
            (place / name).symlink_to(ROOT / name)
    (place / "kernels.py").write_text(KERNELS)
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder."""
    return reader(tmp_path_factory.mktemp("reader"))


def on_a_cpu(command):
    """Whether a command is tried here."""
    return not command.startswith(ELSEWHERE) and not any(word in command for word in MEASURES)


@pytest.mark.parametrize("command", parameters(on_a_cpu))
def test_runs_as_printed(command, folder):
    if "tensor_parallel.py" in command:
        pytest.importorskip("torch")
    command += " --limit 1" if command.startswith(ENDLESS) else ""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_"))}
    script = f'source "{ROOT}/scripts/env.sh"; PATH="{path}"; cd "{folder}"; {command}'
    done = subprocess.run(["bash", "-c", script], env=env, cwd=folder, capture_output=True, text=True, timeout=170,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-2500:]}"
    assert "Traceback" not in done.stderr
