"""Kernels compiled before they are measured: who compiles what, and that a budget ends it."""

import io
import json
import os
import subprocess

import pytest

from pknumba import GemmAllReduceConfig, GemmConfig
from pknumba.errors import CompileError
from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.kernels.sliced_gemm import SlicedGemm
from pknumba.templates import call
from pknumba.tuning import ahead

CONFIGS = [GemmConfig(), GemmConfig(tile_n=128, stages=6, slices=4), GemmConfig(cluster=2)]


class Process:
    """Stands for a process that compiles; ``slow`` ones never end by themselves."""

    slow, made = False, []

    def __init__(self, command, **options):
        self.command, self.env, self.stdin, self.killed = command, options["env"], io.StringIO(), False
        self.stdin.close = lambda: None
        Process.made.append(self)

    def wait(self, timeout=None):
        if self.slow and not self.killed:
            raise subprocess.TimeoutExpired(self.command, timeout)

    def kill(self):
        self.killed = True


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.setattr(ahead.subprocess, "Popen", Process)
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Process, "made", [])
    return Process.made


def test_each_is_compiled_once(processes, monkeypatch):
    """By as many processes as there are cores, none of which takes itself for a rank; what is asked for comes as it was."""
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    ahead.compile_ahead("gemm", CONFIGS, 10)
    asked = [GemmConfig(**fields) for p in processes for fields in json.loads(p.stdin.getvalue())]
    assert len(processes) == 2 and sorted(map(repr, asked)) == sorted(map(repr, CONFIGS))
    assert all(p.command[-2:] == ["pknumba.tuning.ahead", "gemm"] and "OMPI_COMM_WORLD_SIZE" not in p.env for p in processes)
    assert all(p.env["PATH"] == os.environ["PATH"] for p in processes)


@pytest.mark.parametrize("configs, seconds", [(CONFIGS[:1], 10), ([], 10), (CONFIGS, -1)])
def test_nothing_is_started_for_little(processes, configs, seconds):
    ahead.compile_ahead("gemm", configs, seconds)
    assert not processes


def test_the_budget_ends_it(processes, monkeypatch):
    monkeypatch.setattr(Process, "slow", True)
    ahead.compile_ahead("gemm", CONFIGS, 0.01)
    assert processes and all(p.killed for p in processes)


def test_what_a_process_does(monkeypatch):
    """The kernel that plays each configuration; one that is refused does not keep the others from being compiled."""
    found = []

    def compiled(kernel, cfg):
        found.append((kernel, cfg))
        raise CompileError("no")
    monkeypatch.setattr(call, "compiled", compiled)
    ahead.main("gemm", json.dumps([vars(c) for c in CONFIGS]))
    assert found == [(Gemm, CONFIGS[0]), (SlicedGemm, CONFIGS[1]), (Gemm, CONFIGS[2])]
    ahead.main("gemm_all_reduce", json.dumps([vars(GemmAllReduceConfig())]))
    assert found[3][0] is GemmAllReduce
