"""scripts/run.py runs attention in every form."""

import pytest

from .test_run import run


@pytest.mark.parametrize("op", ["attention", "ring_attention", "ulysses_attention", "decode_attention"])
def test_a_row_for_each_number_of_ranks(op):
    done = run(op, "--m", 37, "--n", 16, "--world", 1, 2, 3, "--iters", 2)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[5], row[-1]) for row in rows] == [(op, str(size), "PASS") for size in (1, 2, 3)]
