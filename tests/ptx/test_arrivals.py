"""Whoever arrives for a warpgroup does so once all its warps are there: one that is late would read what comes next, or wait for a phase
that another has followed (seen on an H200: causal ring attention hung after some hundred calls)."""

import ast
import re

import pytest

from pknumba.config import AttentionConfig, DecodeAttentionConfig, GemmConfig, GroupedGemmConfig, RingAttentionConfig
from pknumba.kernels import Attention, DecodeAttention, Gemm, GroupedGemm, RingAttention

from ..test_layers import ROOT
from .test_text import statements

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

PLANS = {"attention": (Attention, AttentionConfig(causal=True)), "ring": (RingAttention, RingAttentionConfig(causal=True, zigzag=True)),
         "decode": (DecodeAttention, DecodeAttentionConfig()), "groups": (GroupedGemm, GroupedGemmConfig()),
         "gemm": (Gemm, GemmConfig()), "turns": (Gemm, GemmConfig(tile_n=192, c_stages=3, ping_pong=True))}
#: What a warpgroup's threads do apart, what brings them together, and what only roles of one thread do before they arrive.
APART = r"mbarrier\.try_wait|ldmatrix|stmatrix|ld\.shared\.v|st\.shared\.v"
TOGETHER = r"bar\.sync [123], 128|wgmma\.wait_group|cp\.async\.bulk\.wait_group"


def hasty(code):
    """Arrivals before which, as the text goes, threads of a worker have been apart since they last met."""
    found, met = [], True
    for n, s in enumerate(code):
        if re.search(TOGETHER, s):
            met = True
        elif re.search(APART, s):
            met = False
        elif re.search(r"mbarrier\.arrive\.release", s) and not met:
            found.append((n, s))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_threads_meet_before_one_arrives(name):
    from pknumba.lowering.entry import to_ptx
    kernel, cfg = PLANS[name]
    code = statements(to_ptx(kernel.plan(cfg)))
    assert any("mbarrier.arrive.release" in s for s in code)
    assert not hasty(code)


def test_a_hasty_arrival_is_found():
    assert hasty(["mbarrier.try_wait.x", "mbarrier.arrive.release.cta"])
    assert hasty(["bar.sync 1, 128", "ldmatrix.x4", "mbarrier.arrive.release"])
    assert not hasty(["mbarrier.try_wait.x", "bar.sync 1, 128", "mbarrier.arrive.release", "mbarrier.arrive.release"])


def calls_of(statement, name):
    """Calls of a function in one statement, not in those inside it."""
    parts = [statement] if not hasattr(statement, "body") else []
    return [c for p in parts for c in ast.walk(p) if isinstance(c, ast.Call) and getattr(c.func, "id", "") == name]


def unproven(function):
    """Lines of a role that pass ``arrive`` an ``after`` which nothing just before has made true."""
    found = []

    def look(body, tiles):
        fenced = None
        for s in body:
            for call in calls_of(s, "arrive"):
                proof = ast.unparse(call.args[1]) if call.args[1:] else None
                if proof is not None and proof not in (*tiles, fenced):
                    found.append(call.lineno)
            fenced = next((ast.unparse(c.args[0]) for c in calls_of(s, "fence_async")), None)
            if isinstance(s, ast.Assign):
                target = ast.unparse(s.targets[0])
                tiles = {*tiles, target} if calls_of(s, "mma_wait") else tiles - {target}
            for inner in (getattr(s, "body", []), getattr(s, "orelse", [])):
                look(inner, tiles)
    look(function.body, set())
    return found


@pytest.mark.parametrize("file", sorted((ROOT / "pknumba" / "kernels").glob("*.py")), ids=lambda f: f.stem)
def test_what_proves_that_they_have_met(file):
    """A register tile that mma_wait has just given, or the shared tile of the fence before."""
    roles = [f for f in ast.walk(ast.parse(file.read_text())) if isinstance(f, ast.FunctionDef)]
    assert not [(f.name, lines) for f in roles if (lines := unproven(f))]


@pytest.mark.parametrize("text, wrong", [("acc = mma_wait(acc, 0)\narrive(s.a, acc)", 0), ("arrive(s.a, acc)", 1),
                                         ("acc = mma_wait(acc, 0)\nacc = mma(acc, x, y)\narrive(s.a, acc)", 1),
                                         ("fence_async(s.c[0])\narrive(s.f, s.c[0])", 0), ("fence_async(s.c[1])\narrive(s.f, s.c[0])", 1),
                                         ("fence_async(s.c)\nstore(s.c, x)\narrive(s.f, s.c)", 1), ("arrive(s.f)", 0)])
def test_proofs(text, wrong):
    assert len(unproven(ast.parse(f"def role():\n    {text.replace(chr(10), chr(10) + '    ')}").body[0])) == wrong
