"""scripts/gpu_tests.py: how jobs end, what they leave, which card they see. No GPU is touched: the tests that it runs are toys."""

import importlib
import json
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"
SEEN = "import os\nimport pytest\npytestmark = pytest.mark.gpu\n"
TOYS = {
    "test_good_gpu.py": "def test_card():\n    assert os.environ['CUDA_VISIBLE_DEVICES'] in '01'\n",
    "test_bad_gpu.py": "def test_wrong():\n    assert 1 == 2\n",
    "test_none_gpu.py": "pytestmark = pytest.mark.multigpu\ndef test_pair():\n    assert os.environ['CUDA_VISIBLE_DEVICES'] == '0,1'\n",
}
#: A test that starts a process in a session of its own, as mpirun does, and then waits for ever.
HANGS = """import subprocess, sys, time
def test_hangs():
    left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
    with open({pid!r}, 'w') as file:
        file.write(str(left.pid))
    time.sleep(600)
"""


def runs(pid):
    """Whether that process has not ended; one that nobody has asked for its status has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Function (toys, *flags) -> (exit status, what was printed, {job: how it ended})."""
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("gpu_tests")
    monkeypatch.setattr(module, "ROOT", tmp_path)       # the toys' pytest must not find this project's settings

    def call(toys, *flags):
        for name, text in toys.items():
            (tmp_path / name).write_text(SEEN + text)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: g\n    multigpu: m\n")
        status = module.main(["--folder", str(tmp_path), "--out", str(tmp_path / "out"), "--calls", "0", *flags])
        lines = (tmp_path / "out" / "jobs.jsonl").read_text().splitlines()
        return status, capsys.readouterr().out, {job["name"]: job["how"] for job in map(json.loads, lines)}
    return call


def test_how_they_end(run, tmp_path):
    status, said, how = run(TOYS, "--cards", "2")
    assert status == 1 and how == {"good": "passed", "bad": "failed", "none": "nothing", "several cards pair": "passed"}
    assert "2 passed, 1 failed" in said and "assert 1 == 2" in (tmp_path / "out" / "bad.log").read_text()


def test_all_pass(run):
    status, said, how = run({"test_good_gpu.py": TOYS["test_good_gpu.py"]}, "--cards", "1")
    assert (status, how) == (0, {"good": "passed"}), said


def test_ranks_that_share_a_card_have_it_alone(run):
    """Tests of one file, in two jobs; a word that names the file names both."""
    toys = {"test_both_gpu.py": "def test_plain():\n    pass\n\n\ndef test_ranks_under_mps():\n    assert 1 == 2\n", **TOYS}
    status, _, how = run(toys, "--cards", "1", "--only", "both")
    assert status == 1 and list(how.items()) == [("both", "passed"), ("both under MPS", "failed")]


def test_what_hangs_is_stopped_with_all_that_it_started(run, tmp_path):
    pid = tmp_path / "pid"
    toys = {"test_good_gpu.py": TOYS["test_good_gpu.py"], "test_long_gpu.py": HANGS.format(pid=str(pid))}
    status, said, how = run(toys, "--cards", "1", "--limit", "6")
    assert status == 1 and how == {"good": "passed", "long": "stopped"}, said
    until = time.monotonic() + 5
    while runs(pid.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not runs(pid.read_text())


def test_what_does_not_fit_is_not_started(run):
    status, said, how = run(TOYS, "--cards", "1", "--seconds", "5", "--only", "good", "bad")
    assert status == 1 and set(how.values()) == {"not started"}, said


def test_programs_of_many_calls(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    module = importlib.import_module("gpu_tests")
    found = module.jobs(SCRIPTS.parent / "tests" / "gpu", ["many_"], 50, 1)
    assert len(found) == 15 and all(Path(job.command[6]).exists() and job.command[-2:] == ("--calls", "50") for job in found)
    assert {job.cards for job in found} == {"alone"} and sys.executable in found[0].command
