"""python -m pknumba check: one-line errors, status, and what it prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from pknumba.__main__ import main

HERE = Path(__file__).resolve().parent
KERNELS = str(HERE / "kernels.py")


def run(*arguments, capsys):
    status = main(["check", *arguments])
    return status, *capsys.readouterr()


def test_clean(capsys):
    status, out, _ = run("gemm", "--seeds", "2", "--size", "32", "32", "16", "--set", "consumers=1", "ping_pong=false", capsys=capsys)
    assert status == 0 and "Gemm: 2 of 2 runs" in out


def test_finding(capsys, tmp_path):
    status, out, _ = run(f"{KERNELS}:Hasty", "--world", "2", "--seeds", "1", "--save", str(tmp_path / "x"), capsys=capsys)
    assert status == 1 and "RaceError" in out and (tmp_path / "x" / "timeline.svg").exists()
    line = out.split("reproduce: python -m pknumba ")[1].splitlines()[0].split()
    again, text, _ = run(*line[1:], "--shrink", "0", capsys=capsys)
    assert again == 1 and text.split("RaceError")[1][:200]


def test_a_card_that_ranks_share(capsys):
    """Blocks that need all others at once find no room; the line that reproduces it says so."""
    run_of = "--world", "3", "--seed", "0", "--card-sms", "6"
    status, out, _ = run("gemm_reduce_scatter", *run_of, "--shrink", "0", capsys=capsys)
    assert status == 1 and "cannot start: the 6 SMs of the card are taken" in out and out.rstrip().endswith("--card-sms 6")
    assert run("gemm_reduce_scatter", *run_of[:-1], "12", capsys=capsys)[0] == run("gemm_all_reduce", *run_of, capsys=capsys)[0] == 0


@pytest.mark.parametrize("arguments, words", [
    (["gem"], "no operator gem. Did you mean gemm? There are"), (["nowhere.py:X"], "no file nowhere.py"),
    ([f"{KERNELS}:Nothing"], "Its classes: Copy"), (["gemm", "--set", "depth=3"], "no field 'depth'"),
])
def test_errors_are_one_line(arguments, words, capsys):
    status, _, err = run(*arguments, capsys=capsys)
    assert status == 2 and words in err and len(err.splitlines()) == 1


def test_a_file_that_does_not_import(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("import nothing_of_the_kind\n")
    status, _, err = run(f"{path}:X", capsys=capsys)
    assert status == 2 and "cannot be imported" in err and "nothing_of_the_kind" in err


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--set", "depth"], ["--policy", "lifo"]])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run("gemm", *arguments, capsys=capsys)
    assert ended.value.code == 2


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "pknumba", "check", "gemm", "--seeds", "1"], cwd=HERE.parent.parent, capture_output=True,
                          text=True)
    assert done.returncode == 0 and "nothing found" in done.stdout, done.stderr


def test_a_misspelt_operator(capsys):
    status, _, err = run("all_reduce_rmsnorn", capsys=capsys)
    assert status == 2 and "Did you mean all_reduce_rmsnorm? There are all_gather, " in err


def test_no_command_is_a_question(capsys):
    assert main([]) == 2 and "look for races and deadlocks" in capsys.readouterr().err


def test_timeline_of_a_clean_run(capsys, tmp_path):
    status, out, _ = run("gemm", "--seeds", "1", "--save", str(tmp_path), capsys=capsys)
    assert status == 0 and {p.name for p in tmp_path.iterdir()} == {"timeline.svg", "timeline.json"}


def test_mutate(capsys):
    status, out, _ = run(f"{KERNELS}:Copy", "--mutate", capsys=capsys)
    assert status == 0 and "mutants noticed" in out
