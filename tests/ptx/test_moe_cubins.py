"""Kernels of groups of rows compile to cubins in every configuration that ships; their main loops are those of the GEMM."""

import pytest

from pknumba import config, lowering
from pknumba.config import CommConfig, ExpertConfig, MoeConfig
from pknumba.config.moe import _TALL
from pknumba.kernels import GatheredGemm, GroupedGemm, MoeCombine, MoeDispatchGemm
from pknumba.kernels.moe_combine import MoeSum
from pknumba.kernels.moe_dispatch_gemm import Route

from .test_cubins import expect_instructions, expect_main_loop, expect_panels_handed_over, released

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

SHIPPED = [fields for fields, *_ in config._GEMMS]


def cases():
    """(kernel, configuration): every way to share tiles, the widest and the narrowest; dtypes and layouts of B in turn."""
    for i, fields in enumerate([SHIPPED[1], SHIPPED[0], SHIPPED[2], _TALL, SHIPPED[5]]):
        activation = {"activation": "silu"} if i == 1 else {}                  # a layer's first product on one rank
        kind = ExpertConfig if activation else GroupedGemm.config
        cfg = kind(b_transposed=i % 2 == 0, dtype=("bfloat16", "float16")[i // 2 % 2], **activation, **fields)
        yield pytest.param(GroupedGemm, cfg, id=f"{i}-{'nk' if cfg.b_transposed else 'kn'}")


@pytest.mark.parametrize("kernel, cfg", list(cases()))
def test_cubin(kernel, cfg, disassemble):
    cfg.check()
    cubin, record = lowering.build(kernel.plan(cfg))
    threads = 128 * (cfg.consumers + 1)
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], threads)
    assert record["registers"] * threads <= 65536
    code = disassemble(cubin)
    expect_instructions(kernel, cfg, record, code, code.counts())
    expect_main_loop(cfg, code)
    expect_panels_handed_over(code)
    expect_groups(code)


def expect_groups(code):
    """A and C move by maps of four dimensions; nothing is read before the kernel before this one has ended."""
    assert code.find("UTMALDG.4D") and code.find("UTMALDG.3D") and len(code.find("UTMASTG.4D")) == code.counts()["UTMASTG"]
    first = code.find("LDG.E")[0]
    assert code.find("ACQBULK")[0] < first, "where groups end may be what the last kernel wrote"


@pytest.mark.parametrize("number", range(len(SHIPPED) + 1))
def test_gathered(number, disassemble):
    """In all that a call may choose, with the activation that takes most: no spill, no notice, the GEMM's main loop. A lane's pieces are
    asked for one after the other and never waited for by it; what has come is shown to the tensor cores before each stage's products."""
    cfg = ExpertConfig(activation=("silu", "gelu")[number % 2], b_transposed=number % 3 > 0, dtype=("bfloat16", "float16")[number // 2 % 2],
                       **[*SHIPPED, _TALL][number])
    cfg.check()
    cubin, record = lowering.build(GatheredGemm.plan(cfg))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 128 * (cfg.consumers + 1))
    assert "A" not in record["boxes"]
    code = disassemble(cubin)
    expect_main_loop(cfg, code)
    expect_panels_handed_over(code)
    copies = code.find("LDGSTS.E.BYPASS.128")
    pieces = cfg.tile_m // 8 * (cfg.tile_k // 64)
    cut = [code.instructions[n].name.endswith("ZFILL") for n in copies[:2 * pieces]]
    assert cut == [False] * pieces + [True] * pieces, "whole pieces; those that the last column cuts; what follows is for warps that parted"
    assert copies[pieces - 1] - copies[0] <= 6 * pieces and not any(copies[0] < n < copies[pieces - 1] for n in code.find("BAR"))
    told = code.find("ARRIVES.LDGSTSBAR")
    assert told and all(code.after(n, "SYNCS.ARRIVE", 30) is not None for n in told)
    fences, products = code.find("FENCE.VIEW.ASYNC"), code.find("HGMMA")
    starts = [n for n in products if code.before(n, "HGMMA", n - 1) is None or code.before(n, "WARPGROUP.ARRIVE", 12) is not None]
    assert starts and any(code.before(n, "FENCE.VIEW.ASYNC", 60) in fences for n in starts)
    assert code.find("ACQBULK")[0] < code.find("LDG.E")[0], "where groups end and rows lie is what the last kernel wrote"


EXPERTS = [(MoeDispatchGemm, {}), (MoeCombine, dict(b_transposed=False)),
           (MoeDispatchGemm, dict(SHIPPED[2], activation="silu", b_transposed=False, dtype="float16"))]


@pytest.mark.parametrize("kernel, fields", EXPERTS, ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else x.__name__)
def test_experts(kernel, fields, disassemble):
    """No spill and no notice; rows move in units of 16 bytes; what tells of them releases, and who waits acquires, at system scope."""
    cfg = MoeConfig(**fields)
    cfg.check()
    cubin, record = lowering.build(kernel.plan(cfg))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 128 * (cfg.consumers + 1))
    code = disassemble(cubin)
    expect_instructions(kernel, cfg, record, code, code.counts())
    expect_panels_handed_over(code)
    expect_groups(code)
    signals = code.find("REDG.E.ADD.STRONG.SYS")
    assert signals and len(signals) == code.counts()["REDG"] and all(released(code, n) for n in signals)
    polls = code.find("LDG.E.STRONG.SYS")
    assert polls and all(code.after(n, "CCTL.IVALL", 3) is not None for n in polls)
    assert code.find("LDG.E.128.STRONG.SYS") and code.find("STG.E.128.STRONG.SYS")


def test_route(disassemble):
    cubin, record = lowering.build(Route.plan(CommConfig(dtype="int32")))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 512)
    counts = disassemble(cubin).counts()
    assert counts["VOTE"] + counts["VOTEU"] and counts["POPC"] and not counts["CALL"]


def test_tokens(disassemble):
    """Rows move in units of 16 bytes, many of them loaded before the first is used; nothing is read before the last kernel has ended."""
    cubin, record = lowering.build(MoeSum.plan(MoeConfig()))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 512)
    code = disassemble(cubin)
    loads, stores = code.find("LDG.E.128.STRONG.SYS"), code.find("STG.E.128.STRONG.SYS")
    assert loads and stores and sum(n < stores[0] for n in loads) >= 4 and not code.counts()["CALL"]
    assert code.counts()["FFMA"]
    assert code.find("ACQBULK")[0] < code.find("LDG")[0]
