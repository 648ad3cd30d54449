"""Kernels of groups of rows compile to cubins in every configuration that ships; their main loops are those of the GEMM."""

import pytest

from pknumba import config, lowering
from pknumba.config import CommConfig, ExpertConfig, MoeConfig
from pknumba.config.moe import _TALL
from pknumba.kernels import GroupedGemm, MoeCombine, MoeDispatchGemm
from pknumba.kernels.moe_combine import MoeSum
from pknumba.kernels.moe_dispatch_gemm import MoeGather, Route

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


@pytest.mark.parametrize("kernel", [MoeGather, MoeSum])
def test_tokens(kernel, disassemble):
    """Rows move in units of 16 bytes, many of them loaded before the first is used; nothing is read before the last kernel has ended."""
    cubin, record = lowering.build(kernel.plan(MoeConfig()))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 512)
    code = disassemble(cubin)
    loads, stores = code.find("LDG.E.128.STRONG.SYS"), code.find("STG.E.128.STRONG.SYS")
    assert loads and stores and sum(n < stores[0] for n in loads) >= 4 and not code.counts()["CALL"]
    assert bool(code.counts()["FFMA"]) == (kernel is MoeSum)
    assert code.find("ACQBULK")[0] < code.find("LDG")[0]
