"""scripts/run.py runs every collective."""

import pytest

from .test_run import run

NAMES = ("all_reduce", "all_reduce_rmsnorm", "gemm_all_to_all",
         "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_recv")


@pytest.mark.parametrize("op", NAMES)
def test_a_row_for_each_number_of_ranks(op):
    done = run(op, "--m", 36, "--n", 20, "--world", 1, 2, 3, "--iters", 2)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[5], row[-1]) for row in rows] == [(op, str(size), "PASS") for size in (1, 2, 3)]


@pytest.mark.parametrize("op, config", [("gemm_all_reduce", ["intra_sm=true", "piece_m=1"]),
                                        ("gemm_reduce_scatter", ["adds=True", "comm_sms=1"])])
def test_variants(op, config):
    done = run(op, "--m", 70, "--n", 40, "--k", 24, "--world", 2, "--config", *config)
    assert done.returncode == 0 and done.stdout.rstrip().endswith("PASS"), done.stderr + done.stdout


def test_unequal_shares_are_an_error():
    done = run("reduce_scatter", "--m", 35, "--n", 20, "--world", 3)
    assert done.returncode == 2 and "ShapeError: reduce_scatter: dimension 0" in done.stderr
