"""Worlds on two separate hosts, with addresses of their own, joined by TCP: mpirun starts them through a launch agent, without ssh."""

import re
from pathlib import Path

import pytest

#: What is said on every surviving rank of a fault.
ALL, ALPHA = (0, 1, 2, 3), (0, 1)
PROGRAM = Path(__file__).with_name("on_hosts.py")


def clean(done, hosts=("alpha", "beta")):
    """Whether nothing is left in the shared memory of these hosts."""
    return re.findall(r"left in shared memory of (\w+): *\n", done.stdout + "\n") == list(hosts)


def heard(folder, ranks=ALL):
    """What these ranks said, and no other."""
    assert {path.name for path in folder.glob("said-*")} == {f"said-{rank}" for rank in ranks}
    return [(folder / f"said-{rank}").read_text() for rank in ranks]


@pytest.mark.parametrize("ranks", [(2, 2), (1, 3)], ids=str)
def test_every_operator(hosts, tmp_path, ranks):
    done = hosts(ranks, PROGRAM, "everything", env={"PKNUMBA_CHUNK_BYTES": "4096"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("fine" in said for said in heard(tmp_path)), done.stdout + done.stderr
    assert clean(done), done.stdout


def test_another_version_on_one_node(hosts, tmp_path):
    done = hosts((1, 1), PROGRAM, "versions")
    for said in heard(tmp_path, (0, 1)):
        assert "pknumba.__version__ is 0.1.0 on rank 0 on alpha and 9.9 on rank 1 on beta" in said
    assert clean(done)


def test_nodes_that_call_differently(hosts, tmp_path):
    """Every rank is told, at once, and the world can be used afterwards."""
    done = hosts((1, 3), PROGRAM, "wrong_calls")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in heard(tmp_path):
        calls, dtypes, sizes, inside = said.splitlines()
        assert re.match(r"WorldError after \d\.\d s: ", calls), calls
        assert "rank 0 on node alpha in agree on all_reduce, ranks 1, 2 and 3 on node beta in agree on all_gather" in calls
        assert "DTypeError" in dtypes and "int32 on rank 0 on node alpha and float32 on ranks 1, 2 and 3 on node beta" in dtypes
        assert "ShapeError" in sizes and "1 on node alpha, 3 on node beta" in sizes
        assert "UnsupportedError" in inside and "spans 2 nodes (alpha, beta)" in inside
    assert clean(done)


#: Fault -> (ranks that live, options of mpirun).
FAULTS = {"another_operator": (ALL, ()), "frozen": (ALPHA, ()), "unplugged": (ALL, ()), "killed": (ALPHA, ("--with-ft", "ulfm")),
          "killed_in_a_barrier": (ALPHA, ("--with-ft", "ulfm"))}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_rank_that_lives_names_the_node(hosts, tmp_path, fault):
    """Within the limit of 3 s, and some seconds on a busy machine."""
    living, options = FAULTS[fault]
    # mpirun itself, told to go on when a rank is gone, once did not end when all others had: what they said is what is tested.
    done = hosts((2, 2), PROGRAM, fault, options=options, before=("timeout", "-k", "5", "60"))
    for rank, said in zip(living, heard(tmp_path, living)):
        assert re.match(r"(Hang|World)Error after \d\.\d s: ", said), said
        assert f"on node {'beta' if rank < 2 else 'alpha'}" in said, said
    assert clean(done), done.stdout


def test_a_rank_that_raises_is_known_on_every_node(hosts, tmp_path):
    """At once, long before the limit of 20 s."""
    done = hosts((2, 2), PROGRAM, "raised")
    *others, itself = heard(tmp_path)
    assert itself == "raised no more data\n"
    for said in others:
        assert re.match(r"WorldError after \d\.\d s: ", said) and "no more data" in said and "node beta" in said, said
    assert clean(done), done.stdout
