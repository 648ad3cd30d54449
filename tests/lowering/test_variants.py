"""What the environment changes in a kernel's code: nothing unless it is asked to."""

import importlib
import re

import pytest

from pknumba import Gemm, GemmAllReduce, lowering
from pknumba.errors import CompileError
from pknumba.kernels.broadcast import Broadcast
from pknumba.lowering import cache, compile, register
from pknumba.lowering.entry import to_ptx
from pknumba.primitives import tma, vectors

from ..primitives.kernels import Through
from ..primitives.tiny import TinyConfig

CFG = GemmAllReduce.config(tile_m=128, tile_n=128, consumers=2)


def text():
    """The PTX, without the names that count how many kernels this process has compiled."""
    return re.sub(r"_Z\w+", "name", to_ptx(GemmAllReduce.plan(CFG)))


@pytest.fixture(scope="module")
def usual():
    return text()


@pytest.mark.ptx
def test_a_debug_build_checks_and_others_do_not(usual, monkeypatch):
    """Unset and 0 give the code of a lowering that knows no checks at all; 1 gives more, with lines to name."""
    monkeypatch.setenv("PKNUMBA_DEBUG", "0")
    for module in (register, importlib.import_module("pknumba.primitives.signal"), tma, vectors):
        monkeypatch.setattr(module, "insist", lambda *a: None)
    assert text() == usual
    monkeypatch.undo()
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")
    checked = text()
    assert checked.count("GONE: }") > usual.count("GONE: }") + 10
    record = lowering.build(GemmAllReduce.plan(CFG))[1]
    assert record["spill"] == 0 and not record["notices"]
    assert {"index 0 of tile a[4, 2, 64, 64]", "first row of a window of A", "rank of counters done", "number of counter finished",
            "first column of a window of C", "index of semaphore ab_full"} <= set(record["checks"])
    assert any(site.startswith("gemm.py:") for site in record["sites"])


@pytest.mark.ptx
def test_a_debug_build_may_spill(monkeypatch):
    """Its checks take registers, and it may be slow; any other build that spills is refused."""
    read = compile._read_log
    monkeypatch.setattr(compile, "_read_log", lambda log, cubin: {**read(log, cubin), "spill": 8})
    with pytest.raises(CompileError, match="8 bytes spilled"):
        lowering.build(Through.plan(TinyConfig()))
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")
    assert lowering.build(Through.plan(TinyConfig()))[1]["spill"] == 8


@pytest.mark.ptx
def test_waits_without_a_bound_read_no_clock(usual, monkeypatch):
    monkeypatch.setenv("PKNUMBA_UNBOUNDED", "1")
    assert "globaltimer" in usual and "globaltimer" not in text()


@pytest.mark.ptx
def test_lines_are_those_of_roles(usual, monkeypatch):
    """PKNUMBA_LINES=1: instructions know the file and line of the role that they are of."""
    monkeypatch.setenv("PKNUMBA_LINES", "1")
    told = text()
    assert ".loc" not in usual and re.search(r'\.file\s+\d+ ".*/gemm\.py"', told) and told.count(".loc") > 100
    assert lowering.build(Broadcast.plan(Broadcast.config()))[1]["spill"] == 0, "its copy_out has no statement"


def test_each_variant_is_kept_by_a_name_of_its_own(monkeypatch):
    names = {cache.key(Gemm, Gemm.config())}
    for variable in ("PKNUMBA_DEBUG", "PKNUMBA_UNBOUNDED", "PKNUMBA_LINES"):
        with monkeypatch.context() as m:
            m.setenv(variable, "1")
            names.add(cache.key(Gemm, Gemm.config()))
    assert len(names) == 4
