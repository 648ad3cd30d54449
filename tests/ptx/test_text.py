"""The PTX of kernels: order, scope and proxy of every synchronising instruction, as the memory model asks for them."""

import re

import pytest

from pknumba.config import AllGatherGemmConfig, GemmAllReduceConfig, GemmConfig
from pknumba.kernels import AllGatherGemm, Gemm, GemmAllReduce

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

PLANS = {"gemm": (Gemm, GemmConfig()), "in turns": (Gemm, GemmConfig(tile_n=192, c_stages=3, ping_pong=True)),
         "all-reduce": (GemmAllReduce, GemmAllReduceConfig()), "gather": (AllGatherGemm, AllGatherGemmConfig())}


@pytest.fixture(scope="module")
def texts():
    from pknumba.lowering.entry import to_ptx
    return {name: statements(to_ptx(kernel.plan(cfg))) for name, (kernel, cfg) in PLANS.items()}


def statements(text):
    """Statements in order, without comments, declarations and line breaks."""
    text = re.sub(r"//[^\n]*", "", text)
    return [s for s in (" ".join(part.split()) for part in re.split(r"[;{}\n](?=\s*[@a-zA-Z.$%{}]|\s*$)|;", text)) if s]


def places(code, pattern):
    return [n for n, s in enumerate(code) if re.search(pattern, s)]


@pytest.mark.parametrize("name", PLANS)
def test_only_these_synchronise(texts, name):
    """Nothing weaker than what is written down here has crept in."""
    allowed = (r"mbarrier\.init\.shared::cta\.b64", r"mbarrier\.try_wait\.parity\.acquire\.cta\.shared::cta\.b64",
               r"mbarrier\.arrive\.release\.cta\.shared::cta\.b64", r"mbarrier\.arrive\.expect_tx\.release\.cta\.shared::cta\.b64",
               r"fence\.proxy\.async", r"fence\.proxy\.async\.shared::cta", r"fence\.acq_rel\.sys",
               r"red\.(release|relaxed)\.sys\.global\.add\.u32",
               r"ld\.acquire\.sys\.global\.u32", r"atom\.relaxed\.gpu\.global\.(add\.u32|cas\.b32)")
    for s in texts[name]:
        found = re.search(r"(?<![\w.])(mbarrier|fence|membar|red|atom|(ld|st)\.(acquire|release|volatile))\b[.\w:]*", s)
        if found:
            assert any(re.fullmatch(a, found[0]) for a in allowed), s


@pytest.mark.parametrize("name", PLANS)
def test_start_of_a_block(texts, name):
    """Semaphores are initialised, shown to the copy engine, shown to the block; then the kernel before this one is waited for."""
    code = texts[name]
    init, fence = places(code, r"^mbarrier\.init"), places(code, r"^fence\.proxy\.async\.shared::cta")[0]
    meet, wait = places(code, r"^bar\.sync 0"), places(code, r"^griddepcontrol\.wait")
    assert init and len(meet) == len(wait) == 1 and init[-1] < fence < meet[0] < wait[0]
    touches = places(code, r"^(@\S+ )?(cp\.async\.bulk\.tensor|ld\.acquire|red\.|setmaxnreg)")
    assert wait[0] < touches[0], "nothing touches global memory before"


@pytest.mark.parametrize("name", PLANS)
def test_a_panel_is_handed_to_the_copy_engine(texts, name):
    """Ordinary stores, then in every thread the proxy fence, then the warpgroup meets, then one thread arrives."""
    code = texts[name]
    last = places(code, r"^stmatrix")[-1]
    fence = next(n for n in places(code, r"^fence\.proxy\.async\.shared::cta") if n > last)
    meet = next(n for n in places(code, r"^bar\.sync [123], 128") if n > last)
    arrive = next(n for n in places(code, r"^mbarrier\.arrive\.release") if n > last)
    assert last < fence < meet < arrive


@pytest.mark.parametrize("name", PLANS)
def test_products(texts, name):
    """wgmma.fence before, commit after, one group in flight, none at the end."""
    code = texts[name]
    products, fence = places(code, r"^wgmma\.mma_async"), places(code, r"^wgmma\.fence\.sync\.aligned")
    commit, waits = places(code, r"^wgmma\.commit_group\.sync\.aligned"), places(code, r"^wgmma\.wait_group\.sync\.aligned")
    assert len(fence) == len(commit) == 1 and fence[0] < products[0] < products[-1] < commit[0] < waits[0]
    assert [code[n].split()[-1] for n in waits] == ["1", "0"]


@pytest.mark.parametrize("name", ["in turns"])
def test_turns(texts, name):
    """Named barriers with literal numbers and 256 threads: a register operand would reserve all sixteen."""
    bars = [code for code in texts[name] if re.match(r"bar\.(sync|arrive)", code)]
    assert all(re.fullmatch(r"bar\.(sync|arrive) \d+(, \d+)?", b) for b in bars), bars
    assert {b for b in bars if "256" in b} == {f"bar.{verb} {n}, 256" for verb in ("sync", "arrive") for n in (8, 9)}


def test_signal(texts):
    """The storer: all bulk groups written (not only read), proxies fenced, then a release at system scope."""
    code = texts["all-reduce"]
    written = places(code, r"^cp\.async\.bulk\.wait_group 0")
    assert len(written) == 1
    after = [s for s in code[written[0] + 1:] if re.match(r"(fence|red|cp\.async|mbarrier|bar|st\.)", s)][:2]
    assert after[0] == "fence.proxy.async" and after[1].startswith("red.release.sys.global.add.u32"), after
    before = [n for n in places(code, r"^cp\.async\.bulk\.tensor.*bulk_group") if n < written[0]]
    assert before and len([n for n in places(code, r"^cp\.async\.bulk\.commit_group") if n < written[0]]) == len(before)


def test_signal_all(texts):
    """A communicator: every lane fences its proxy, the warp meets, one lane fences at system scope, then adds for each rank.

    A fence and a relaxed addition after it release what happened before the fence, the other lanes' writes by their meeting.
    """
    code = texts["all-reduce"]
    meet = places(code, r"^bar\.warp\.sync 0xffffffff")
    assert len(meet) == 1
    assert [s for s in code[:meet[0]] if s.startswith("fence")][-1] == "fence.proxy.async"
    after = [s for s in code[meet[0]:] if re.match(r"fence|red", s)][:2]
    assert after[0] == "fence.acq_rel.sys" and after[1].startswith("red.relaxed.sys.global.add.u32"), after


def test_wait_until(texts):
    """Every poll acquires at system scope; before the copy engine touches data the proxies are fenced, before loads they need not be."""
    code = texts["gather"]
    poll, copy = places(code, r"ld\.acquire\.sys\.global\.u32")[0], places(code, r"cp\.async\.bulk\.tensor\S*global")[0]
    assert [n for n in places(code, r"^fence\.proxy\.async$") if poll < n < copy], "a fence between the first poll and the first copy"
    code = texts["all-reduce"]
    polls, data = places(code, r"ld\.acquire\.sys\.global\.u32"), places(code, r"ld\.relaxed\.sys\.global\.v4\.b32")
    assert polls[0] < data[0] and not [n for n in places(code, r"^fence\.proxy\.async$") if polls[0] < n < data[0]]
    for code in texts.values():
        assert not places(code, r"ld\.relaxed\.sys\.global\.u32"), "a relaxed poll orders nothing"


def test_data_of_peers(texts):
    """Peers' memory is read and written by strong accesses, past this SM's first-level cache."""
    code = texts["all-reduce"]
    for s in code:
        if re.search(r"\b(ld|st)\.\S*global\S*\.(v4\.b32|b16)\b", s):
            assert ".relaxed.sys." in s, s
