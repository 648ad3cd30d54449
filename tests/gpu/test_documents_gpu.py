"""Every command that the documents print runs as printed on a GPU, and so does every program, with the output that they show."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from ..docs.test_commands import ENDLESS, parameters, reader
from ..test_docs import PROGRAMS, skeleton
from . import test_pipelines_gpu as pipelines
from .test_gemm_all_reduce_gpu import bounded

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent.parent
#: What installs something, writes to the repository, or is the suite itself; and mutants, which are interpreted.
ELSEWHERE = ("./scripts/test", "./scripts/setup", "pip install", "jupyter ", "PKNUMBA_BUNDLE=", "python benchmarks/table.py",
             "python -m pknumba check turn.py:",
             "python -m pknumba check kernels.py:MyKernel --mutate")
#: What measures for minutes: as printed it runs on a machine of its own.
MEASURES = ("benchmarks/", "scripts/tune.py", "-m benchmarks")
#: Several processes: they need a service that lets them run at once, or the whole machine.
RANKS = ("mpirun", "scripts/mps", "scripts/demo", "torchrun")


def environment():
    """A reader's: without what a launcher of these tests may have set."""
    return {k: v for k, v in pipelines.environment().items() if not k.startswith(("OMPI_COMM", "PMIX_", "PRTE_", "PMI_"))}


def alone(command):
    """Whether it is one process that ends soon."""
    return not command.startswith(ELSEWHERE) and not any(word in command for word in (*MEASURES, *RANKS))


def together(command):
    """Whether it starts ranks that end soon."""
    return any(word in command for word in RANKS) and not any(word in command for word in MEASURES)


def measures(command):
    """Whether it measures."""
    return any(word in command for word in MEASURES) and not command.startswith(ELSEWHERE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's folder, with an environment that is installed already: the Python that runs this."""
    place = reader(tmp_path_factory.mktemp("reader"))
    there = place / ".venv" / "bin"
    there.mkdir(parents=True)
    (there / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W ignore "$@"\n')
    (there / "python").chmod(0o755)
    (there / "activate").write_text(f'PATH={shlex.quote(str(there))}:"$PATH"\n')
    (there / "mpirun").symlink_to(ROOT / ".venv" / "bin" / "mpirun") if (ROOT / ".venv" / "bin" / "mpirun").exists() else None
    return place


def runs(command, folder, seconds):
    """Run a line in the reader's folder as he would after ``source scripts/env.sh``; its output."""
    stamp = '[ -e .venv/.pknumba-installed ] || echo "$ROOT $(cksum < pyproject.toml)" > .venv/.pknumba-installed'
    script = f"cd {shlex.quote(str(folder))}; source scripts/env.sh; {stamp}; {command}"
    code, out = bounded(["bash", "-c", script], environment(), seconds)
    print(out[-3000:])
    assert code == 0 and "Traceback" not in out, f"{command}\n{out[-3000:]}"
    return out


@pytest.mark.parametrize("command", parameters(alone))
def test_alone(command, folder):
    out = runs(command + (" --limit 1" if command.startswith(ENDLESS) else ""), folder, 60)
    if "scripts/run.py" in command:
        assert " gpu " in out and "interpreter" not in out, "it took the GPU that is there"


@pytest.mark.parametrize("command", parameters(together))
def test_together(command, folder):
    out = runs(command, folder, 80)
    if "scripts/run.py" in command or "demo" in command:
        assert " gpu " in out and "interpreter" not in out, "it took the GPU that is there"


@pytest.mark.slow
@pytest.mark.parametrize("command", parameters(measures))
def test_measures(command, folder):
    """In the order in which they are printed: what the tuner found is what it shows."""
    runs(f"export PKNUMBA_TUNING_FILE={shlex.quote(str(folder / 'tuning.jsonl'))}; {command}", folder, 600)


@pytest.mark.parametrize("name, number, text, printed", PROGRAMS, ids=[f"{n}-{i}" for n, i, *_ in PROGRAMS])
def test_programs_run(name, number, text, printed, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(text)
    code, out = bounded([sys.executable, "-W", "ignore", str(program)], {**environment(), "TMPDIR": os.fspath(tmp_path)}, 60)
    assert code == 0, out[-3000:]
    if printed is not None:
        assert skeleton(out) == skeleton(printed), f"{name} shows another output than:\n{out}"
