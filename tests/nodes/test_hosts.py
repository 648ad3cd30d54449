"""Worlds on two separate hosts, with addresses of their own, joined by TCP: mpirun starts them through a launch agent, without ssh."""

import re
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("on_hosts.py")


def clean(done, hosts=("alpha", "beta")):
    """Whether nothing is left in the shared memory of these hosts."""
    return re.findall(r"left in shared memory of (\w+): *\n", done.stdout) == list(hosts)


@pytest.mark.parametrize("ranks", [(2, 2), (1, 3)], ids=str)
def test_every_operator(hosts, ranks):
    done = hosts(ranks, PROGRAM, "everything", env={"PKNUMBA_CHUNK_BYTES": "4096"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == 4
    assert clean(done), done.stdout
