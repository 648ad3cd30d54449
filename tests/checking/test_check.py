"""check(): what is right passes; what is wrong is found, told, shrunk, drawn and reproduced."""

import json
import os
import subprocess
import sys
import xml.dom.minidom

import numpy as np
import pytest

from pknumba import check, errors
from pknumba import kernels as shipped
from pknumba.checking import WrongResult, toy_of
from pknumba.checking.checker import Plan
from pknumba.checking.play import play
from pknumba.checking.source import load, name_of
from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.kernels.gemm_all_to_all import ColumnsAndColumns, ColumnsAndRows, RowsAndRows
from pknumba.kernels.gemm_reduce_scatter import GemmReduceScatterAdd

from . import kernels


@pytest.mark.parametrize("kernel", [Gemm, GemmAllReduce, kernels.Copy])
def test_right_kernels_pass(kernel):
    verdict = check(kernel, worlds=(1, 2) if kernel is GemmAllReduce else None, seeds=6)
    assert verdict and verdict.done == verdict.total and verdict.failure is None, str(verdict)
    assert "nothing found" in str(verdict) and verdict.accesses and verdict.switches
    verdict.raise_failure()


SHIPPED = [k for k in (getattr(shipped, n) for n in shipped.__all__) if isinstance(k, type) and hasattr(k, "roles")]


@pytest.mark.parametrize("kernel", SHIPPED, ids=lambda k: k.__name__)
def test_every_operator_has_a_toy(kernel):
    """`python -m pknumba check NAME` works for each of them. A new operator gets its toy in pknumba/checking/programs.py."""
    assert load(name_of(kernel)) is kernel
    verdict = check(kernel, worlds=(1, 3), seeds=2)
    assert verdict, str(verdict)


@pytest.mark.parametrize("kernel", [GemmReduceScatterAdd, RowsAndRows, ColumnsAndRows, ColumnsAndColumns], ids=lambda k: k.__name__)
def test_kernels_that_operators_choose_have_toys_of_their_own(kernel):
    """Not the definition of what they extend."""
    verdict = check(kernel, worlds=(3,), seeds=2)
    assert verdict, str(verdict)


@pytest.mark.parametrize("kernel, error, words", [
    (kernels.Hasty, errors.RaceError, ("read of C of rank", "write by store_async of", "storer call store_async_wait", "gemm.py")),
    (kernels.Silent, errors.DeadlockError, ("done[0]", "expected 2, seen 0", "the storers of ranks 0, 1", "have ended")),
    (kernels.Lapped, errors.ProtocolError, ("c_empty[0]", "by its parity", "nothing orders the end of phase", "kernels.py")),
    (kernels.Swapped, WrongResult, ("C is wrong in", "look at coordinates")),
])
def test_wrong_kernels_are_found(kernel, error, words, tmp_path):
    verdict = check(kernel, worlds=(2,), seeds=12, shrink_s=2)
    assert not verdict and isinstance(verdict.failure.error, error)
    text = str(verdict)
    for word in (*words, "schedule", "reproduce: python -m pknumba check "):
        assert word in text, (word, text)
    assert len(text.splitlines()) < 50
    with pytest.raises(error):
        verdict.raise_failure()
    paths = {p.name: p for p in verdict.failure.save(tmp_path / "report")}
    assert {"timeline.svg", "timeline.json", "schedule.json", "report.txt"} <= set(paths)
    assert ("waits.svg" in paths) == (error is errors.DeadlockError)
    for path in paths.values():
        if path.suffix == ".svg":
            xml.dom.minidom.parse(str(path))
    assert {e["ph"] for e in json.loads(paths["timeline.json"].read_text())["traceEvents"]} == {"X", "M"}


def test_a_schedule_is_repeated_exactly():
    """What a traced run did, replayed, is the same run step by step."""
    sessions = []
    toy = toy_of(GemmAllReduce)(2, np.random.default_rng(3), size=(32, 64, 16))
    for policy in ("random", "pct", "starve"):
        play(GemmAllReduce, toy, 2, 2, 5, 20, keep=sessions.append, policy=policy, trace=True)
        play(GemmAllReduce, toy, 2, 2, 5, 20, keep=sessions.append, schedule=sessions[-1].schedule(), trace=True)
        assert sessions[-1].trace == sessions[-2].trace and sessions[-1].events == sessions[-2].events


def test_a_schedule_with_holes_is_one_too():
    sessions = []
    toy = toy_of(Gemm)(1, np.random.default_rng(3), size=(32, 64, 16))
    play(Gemm, toy, 1, 2, 5, keep=sessions.append, trace=True)
    entries = sessions[0].schedule()[::3] + [("nobody", 3)]
    play(Gemm, toy, 1, 2, 5, keep=sessions.append, schedule=entries, trace=True)
    assert len(sessions[1].schedule()) < len(sessions[0].schedule())


def test_a_failing_schedule_is_shrunk():
    """A lost update needs a rank to come between another's two steps: two switches more than none at all, whatever was found."""
    from pknumba import interpreter as cpu
    state = {}

    def main(world):
        if world.rank == 0:
            state["n"] = 0
        world.barrier()
        for _ in range(12):
            n = state["n"]
            cpu.rest()
            state["n"] = n + 1
        world.barrier()
        assert state["n"] == 24, f"{24 - state['n']} updates are lost"

    verdict = check(main, worlds=(2,), seeds=5, policies=("random",))
    shrunk, found = verdict.failure.shrunk, verdict.failure.found
    assert shrunk.attempt.switches < 12 < found.switches and shrunk.entries and shrunk.tries > 5
    assert f"shrunk from {found.switches} to {shrunk.attempt.switches} switches" in str(verdict)
    assert "updates are lost" in str(shrunk.attempt.error)


def test_a_program():
    """check(main): any function that every rank runs."""
    import ml_dtypes
    from pknumba import gemm_all_reduce

    def main(world):
        A, B = (np.ones(shape, ml_dtypes.bfloat16) for shape in ((64, 64), (64, 64)))
        assert (gemm_all_reduce(world, A, B) == 64 * world.size).all()

    assert check(main, worlds=(1, 3), seeds=3)


def test_progress_and_limit():
    said = []
    verdict = check(GemmAllReduce, seeds=100, limit_s=2.6, progress=said.append)
    assert verdict and verdict.done < verdict.total and "stopped early" in str(verdict)
    assert said and "runs, nothing found" in said[0]


def test_every_policy_meets_every_completion():
    runs = Plan(worlds=(1,)).runs(Gemm)
    assert len({(r.policy, r.completion) for r in runs}) == len(runs) == 12


@pytest.mark.parametrize("plan", [dict(policies=("lifo",)), dict(completions=("never",))])
def test_unknown_names(plan):
    with pytest.raises(errors.ConfigError, match="It must be among"):
        check(Gemm, **plan)


REPORT = """
import re
from pknumba import check
from tests.checking import kernels
for kernel in (kernels.Silent, kernels.Lapped):
    print(re.sub(r"[0-9.]+ s$", "", str(check(kernel, worlds=(3,), shrink_s=0)), flags=re.M))
"""


def test_the_same_report_in_another_process():
    """Byte for byte: nothing depends on the order of a set."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = {subprocess.run([sys.executable, "-c", REPORT], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=root, check=True,
                            capture_output=True, text=True).stdout for seed in ("1", "2")}
    assert len(found) == 1 and "DeadlockError" in found.pop()


def test_a_kernel_without_a_toy():
    class Bare(Gemm.__mro__[2]):
        """Of the template only."""

    with pytest.raises(errors.ContractError, match="has no toy problem"):
        check(Bare)
