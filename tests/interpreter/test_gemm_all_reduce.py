"""The reference kernel: exact in every world and schedule, and every seeded bug found in every policy."""

import dataclasses
import os
import subprocess
import sys

import pytest

from pknumba.errors import ContractError, DeadlockError, ProtocolError, RaceError

from . import gemm_all_reduce as kernel

POLICIES = [("fifo", "eager"), ("fifo", "late"), ("random", "random"), ("pct", "random"), ("starve", "random")]
FOUND = {
    "no_full_wait": (RaceError, ProtocolError), "no_empty_wait": (RaceError, ProtocolError),
    "arrive_before_mma_wait": RaceError, "no_c_empty_wait": RaceError, "signal_after_read_wait": RaceError,
    "short_wait": RaceError, "stuck_parity": (RaceError, ProtocolError), "lost_arrive": DeadlockError,
    "lost_signal": DeadlockError, "no_fence": ProtocolError, "extra_arrive": (ProtocolError, RaceError),
    "wrong_arriver": ContractError, "early_columns": (ProtocolError, RaceError), "no_expect": (DeadlockError, RaceError),
    "second_store_wait": RaceError,
}


@pytest.mark.parametrize("policy,completion", POLICIES)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_exact(world, policy, completion):
    for seed in range(1 if world > 4 else 3):
        p = dataclasses.replace(kernel.SMALL, world=world, calls=2)
        session = kernel.run(p, seed=seed, policy=policy, completion=completion)
        assert session.accesses and session.switches and session.operations


@pytest.mark.parametrize("bug", kernel.BUGS)
@pytest.mark.parametrize("policy,completion", POLICIES)
def test_bug_is_found(bug, policy, completion):
    for seed in range(2):
        with pytest.raises(FOUND[bug]) as caught:
            kernel.run(dataclasses.replace(kernel.SMALL, bug=bug), seed=seed, policy=policy, completion=completion)
        text = str(caught.value)
        assert text.endswith(f'reproduce: World.local(4, executor="interpreter", seed={seed}, policy="{policy}", '
                             f'completion="{completion}")')
        assert "gemm_all_reduce.py:" in text


def test_bfloat16_and_large_tiles():
    kernel.run(kernel.Problem(world=2, k=256))


def test_many_calls_need_no_more_memory():
    """Clock components, shadow cells and counters' logs do not grow with the number of calls."""
    def size(calls):
        p = dataclasses.replace(kernel.SMALL, world=2, calls=calls, m=32, k=32)
        session = kernel.run(p)
        memories = list(session.memory)
        return (session.components.count, sum(len(m.shadow.cells) for m in memories if m.shadow.name.startswith("C")),
                sum(len(a.log) for m in memories for a in m.counters.values()))
    few, many = size(4), size(24)
    assert many[0] <= few[0] + 8 and many[1] == few[1] and many[2] <= few[2] + 4


def test_without_races():
    session = kernel.run(kernel.SMALL, races=False)
    assert session.accesses == 0


DIGEST = """
import hashlib
from tests.interpreter import gemm_all_reduce as kernel
for policy in ("fifo", "random", "pct", "starve"):
    session = kernel.run(kernel.SMALL, seed=5, policy=policy, trace=True)
    print(policy, len(session.trace), hashlib.sha256("\\n".join(session.trace).encode()).hexdigest())
"""


def test_same_seed_same_trace_in_another_process():
    found = set()
    for hash_seed in ("1", "2"):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        done = subprocess.run([sys.executable, "-c", DIGEST], env={**os.environ, "PYTHONHASHSEED": hash_seed}, cwd=root, check=True,
                              capture_output=True, text=True)
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().splitlines()) == 4


def test_seeds_differ():
    traces = {tuple(kernel.run(dataclasses.replace(kernel.SMALL, world=1), seed=seed, trace=True).trace) for seed in range(3)}
    assert len(traces) == 3
