"""Every kernel in every configuration that ships compiles to a cubin, with no GPU; its machine code is what it should be."""

import pytest

from pknumba import config, lowering
from pknumba.config import GemmConfig, choosing
from pknumba.kernels import AllGatherGemm, Gemm, GemmAllReduce, GemmReduceScatter
from pknumba.kernels.gemm_all_reduce import GemmAllReduceInside
from pknumba.kernels.gemm_all_to_all import ColumnsAndRows, GemmAllToAll
from pknumba.kernels.gemm_reduce_scatter import GemmReduceScatterAdd, GemmReduceScatterInside
from pknumba.kernels.sliced_gemm import SlicedGemm
from pknumba.templates import Grouped
from pknumba.tiles import Semaphore

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

SHIPPED = [fields for fields, *_ in config._GEMMS]
#: The most sums that check() allows for 1, 2 and 3 consumers, a deep stage, and the narrowest panels.
EXTREME = [dict(tile_m=128, tile_n=128, consumers=1), dict(tile_m=256, tile_n=192, stages=3, c_stages=1),
           dict(tile_m=192, tile_n=192, consumers=3, stages=3), dict(tile_m=128, tile_n=96, tile_k=128, stages=3),
           dict(tile_n=48, c_stages=1)]

#: Depths in slices: as many shares as blocks, fewer, and a width that is no power of two.
SLICED = [dict(tile_n=128, stages=6, slices=8), dict(tile_n=256, stages=4, c_stages=1, slices=4, dtype="float16"),
          dict(tile_m=64, tile_n=128, stages=8, consumers=1, slices=32, b_transposed=False), dict(tile_n=160, stages=5, slices=2),
          dict(tile_n=256, stages=4, c_stages=1, slices=16), dict(tile_m=256, tile_n=128, stages=4, c_stages=1, slices=16)]
#: Consumers that store by themselves: together, in turns; in slices, in clusters. Operands that are asked for early.
DIRECT = [dict(tile_n=256, ahead=4), dict(SHIPPED[0], stages=5, c_stages=1), dict(tile_m=192, tile_n=96, stages=5, consumers=3, ahead=2),
          dict(tile_n=176, stages=4, dtype="float16", b_transposed=False), dict(tile_n=128, stages=6, slices=8, ahead=6),
          dict(tile_n=256, stages=4, c_stages=1, slices=16, cluster=2), dict(tile_n=256, stages=4, c_stages=1, slices=4, ahead=1),
          dict(tile_m=64, tile_n=128, stages=4, c_stages=1, consumers=1, slices=16, cluster=2),
          dict(tile_m=128, tile_n=64, stages=8, c_stages=1, cluster=2)]


def named(kernel, fields, mark="", **more):
    """A case: a kernel in a configuration, called by the fields that differ from the usual one, not by what else it has."""
    name = "-".join([kernel.__name__, *(f"{k}={v}" for k, v in fields.items())]) + mark
    return pytest.param(kernel, kernel.config(**fields, **more).fitted(), id=name)


def products():
    """Configurations of gemm: all that ships in both layouts of B, float16, the extremes, clusters and what is measured alone once."""
    fields = [dict(b_transposed=layout, **f) for f in [{}, *SHIPPED] for layout in (True, False)]
    fields += [dict(dtype="float16"), dict(dtype="float16", b_transposed=False)]
    fields += [dict(b_transposed=False, **f) for f in EXTREME]
    fields += [dict(cluster=2, b_transposed=i % 2 > 0, dtype=("bfloat16", "float16")[i % 3 == 2], **f)
               for i, f in enumerate([{}, *SHIPPED][::2])]
    fields += [dict(b_transposed=i % 2 > 0, **f) for i, (f, *_) in enumerate(choosing._ALONE)]
    return {repr(GemmConfig(**f)): f for f in fields}.values()


def cases():
    """(kernel, configuration): fused products within their SMs in all that ships, in a layout and a dtype each; others in some of it."""
    for f in products():
        yield named(Gemm.for_config(GemmConfig(**f)), f)
    for kernel, more in ((Gemm, {}), (GemmAllReduceInside, {"intra_sm": True})):
        yield pytest.param(kernel, kernel.config(**SHIPPED[0], **more).of("float32", True), id=f"{kernel.__name__}-float32")
    for f in SLICED:
        yield pytest.param(SlicedGemm, GemmConfig(**f), id=f"SlicedGemm-{f['tile_n']}-{f['slices']}")
    for f in DIRECT:
        yield named(Gemm.for_config(GemmConfig(direct=True, **f)), dict(direct=True, **f))
    for kernel in (GemmAllReduceInside, GemmReduceScatterInside, AllGatherGemm):
        for i, f in enumerate(({}, *SHIPPED)):
            more = dict(dtype=("float16", "bfloat16")[i % 2], b_transposed=i % 3 > 0, intra_sm=True)
            parts = dict(written=True, chunk_m=32) if kernel is AllGatherGemm else dict(pace_m=(32, 64)[i // 2 % 2])
            yield named(kernel, {**f, **parts}, **more)                         # as where SMs have several tiles
            if i % 2:
                yield named(kernel, f, **more)
    for kernel in (GemmAllReduce, GemmAllToAll, ColumnsAndRows, GemmReduceScatter, AllGatherGemm):
        some = 2 if kernel in (GemmReduceScatter, AllGatherGemm) else 4
        fields = dict(SHIPPED[0], b_transposed=False), dict(dtype="float16"), dict(SHIPPED[2]), dict(SHIPPED[5], b_transposed=False)
        for f in fields[:some]:
            yield named(kernel, f, "-")
    for f in EXTREME[:3]:
        yield named(GemmAllReduce, f)
    for f in (dict(), dict(SHIPPED[0], dtype="float16"), dict(SHIPPED[5], b_transposed=False)):
        yield pytest.param(GemmReduceScatterAdd, GemmReduceScatterAdd.config(adds=True, **f), id=f"GemmReduceScatterAdd-{len(f)}")


@pytest.mark.parametrize("kernel, cfg", list(cases()))
def test_cubin(kernel, cfg, disassemble):
    cfg.check()
    cubin, record = lowering.build(kernel.plan(cfg))
    threads = 128 * (cfg.consumers + 1)
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], threads)
    assert record["registers"] * threads <= 65536
    code = disassemble(cubin)
    counts = code.counts()
    expect_instructions(kernel, cfg, record, code, counts)
    expect_main_loop(cfg, code)
    expect_cluster(cfg, code)
    if cfg.direct:
        expect_own_stores(cfg, code)
    else:
        expect_panels_handed_over(code)
    expect_early_requests(cfg, code)
    if issubclass(kernel, SlicedGemm):
        expect_shares(cfg, code)
    elif kernel is AllGatherGemm:
        expect_moves(cfg, code)
    elif kernel.delivers or issubclass(kernel, GemmReduceScatterInside):
        expect_deliveries(code)
    elif kernel.communicates():
        expect_signals(code)


def expect_instructions(kernel, cfg, record, code, counts):
    """As many of each as the configuration says."""
    depth = 8 if cfg.dtype == "float32" else 16
    shape, products = f"HGMMA.64x{cfg.tile_n}x{depth}.F32", code.find("HGMMA")
    blocks = cfg.part_m // 64
    made = blocks * (blocks + 1) // 2 if issubclass(kernel, Grouped) else blocks       # each number of blocks with rows has its own code
    assert len(products) == cfg.tile_k // depth * made, "one product of a stage, not unrolled"
    for name in (code.instructions[n].name for n in products):
        assert name.startswith(shape) and {"bfloat16": ".BF16", "float32": ".TF32"}.get(cfg.dtype, ".F32") in name, name
        assert (".BF16" in name) == (cfg.dtype == "bfloat16"), name
    moves, inside = cfg.part_m // 64 * cfg.share_n // 16, issubclass(kernel, GemmReduceScatterInside)
    if depth == 16:
        assert counts["STSM"] == moves * (1 + inside) and counts["LDSM"] == moves * inside, "sums are added to what came, or stored alone"
    else:
        assert len(code.find("STS.64")) == 4 * moves * (1 + inside) + 1, "and the launch's context"
    stores = "STG" if cfg.direct else "UTMAREDG" if cfg.adds else "UTMASTG"
    assert counts["UTMALDG"] >= 2 and counts[stores] >= 1 and counts["UTMACMDFLUSH"] == counts["UTMASTG"] + counts["UTMAREDG"]
    semaphores = sum(d.n for d in kernel.shared(cfg) if isinstance(d, Semaphore))
    assert len(code.find("SYNCS.EXCH")) == semaphores, "every semaphore is initialised once"
    assert code.find("SYNCS.PHASECHK") and code.find("SYNCS.ARRIVE")
    assert counts["USETMAXREG"] == (2 if kernel.registers(cfg)[0] else 0)
    for absent in ("CALL", "LDL", "STL"):
        assert counts[absent] == 0, f"{absent}: a call or local memory"
    assert counts["PREEXIT"] == 1 and code.find("ACQBULK") < code.find("UTMALDG"), "waits for the last kernel"
    assert counts["ACQBULK"] == 1 or cfg.direct


def expect_main_loop(cfg, code):
    """Descriptors are computed in uniform registers, one product is in flight while a stage is given back."""
    first, last = code.loop("HGMMA")
    products = code.find("HGMMA")
    for a, b in zip(products, products[1:]):
        moves = sum(i.name == "R2UR" for i in code.instructions[a:b])
        assert moves <= 1, f"{moves} R2UR between two products: descriptors go through ordinary registers"
    wait, free = code.after(products[-1], "WARPGROUP.DEPBAR"), code.after(products[-1], "SYNCS.ARRIVE")
    assert wait is not None and code.instructions[wait].operands.endswith("0x1"), "waits for all but the last product"
    assert free is not None and wait < free <= last, "the stage is given back after the wait"
    assert any(code.instructions[n].operands.endswith("0x0") for n in code.find("WARPGROUP.DEPBAR"))


def expect_cluster(cfg, code):
    """Loads of B go to all blocks; giving a stage back is one instruction for all, without a fence; they meet first, and not last."""
    shared, remote = code.find("UTMALDG.2D.MULTICAST"), code.find("SYNCS.ARRIVE.TRANS64.RED")
    first, last = code.loop("HGMMA")
    if cfg.cluster == 1:
        assert not shared and not remote and not code.find("UCGABAR")
        return
    inside = any(first <= n <= last for n in remote)
    assert remote and inside and len(shared) * 2 >= code.counts()["UTMALDG"]
    assert len(code.find("UCGABAR_ARV")) == len(code.find("UCGABAR_WAIT")) == 1
    assert code.find("UCGABAR_WAIT")[0] < code.find("ACQBULK")[0]
    for n in remote:
        assert code.before(n, "MEMBAR.ALL.GPU", 12) is None, "a release at cluster scope is a fence of the whole GPU"


def expect_own_stores(cfg, code):
    """16 bytes of each lane, as many as the share has, behind a barrier of the warp alone; the copy engine stores nothing."""
    stores = [n for n in code.find("STG.E.128") if "STRONG" not in code.instructions[n].name]
    assert len(stores) == cfg.part_m * cfg.share_n // 1024 and not code.counts()["UTMASTG"]
    products, sliced = code.find("HGMMA"), cfg.slices > 1       # with slices it reads first what the last call has left
    waits = code.find("LDG.E.STRONG.GPU")[0] if sliced else stores[0]
    assert [n for n in code.find("ACQBULK") if (0 if sliced else products[-1]) < n < waits], "the last kernel has ended"
    own = code.instructions[code.find("STSM")[0]:stores[-1]]
    assert not any(i.name.startswith(("BAR.SYNC", "SYNCS", "FENCE")) for i in own), "no other warp is waited for"


def expect_early_requests(cfg, code):
    """Asked for before the loader waits for the last kernel, and only where the configuration says so."""
    asked, loads = code.find("UTMAPF"), code.find("UTMALDG")
    assert bool(asked) == bool(cfg.ahead)
    assert not asked or [n for n in code.find("ACQBULK") if asked[-1] < n < loads[0]]


def expect_panels_handed_over(code):
    """stmatrix, then the proxy fence of every thread, then the warpgroup's barrier, then one arrival."""
    last = (code.find("STSM") or code.find("STS.64"))[-1]
    fence, meet, arrive = code.after(last, "FENCE.VIEW.ASYNC"), code.after(last, "BAR.SYNC"), code.after(last, "SYNCS.ARRIVE")
    assert None not in (fence, meet, arrive) and last < fence < meet < arrive
    guarded = [i for i in code.instructions[meet:arrive] if i.name == "BRA" and i.predicate]
    assert code.instructions[arrive].predicate or guarded, "one thread of the warpgroup arrives"


def released(code, n):
    """Whether a fence of system scope lies between the signal and the last store before it; signals to several ranks share one."""
    fences = [f for f in code.find("MEMBAR.ALL.SYS") if f < n]
    return bool(fences) and not any(i.name.startswith(("STG", "UTMASTG", "UTMAREDG")) for i in code.instructions[fences[-1]:n])


def expect_shares(cfg, code):
    """16 bytes at a time past the L1, without a fence or a signal; many loads are on their way at once; what tells this call from the last
    is asked for before the main loop."""
    blocks, others = cfg.part_m * cfg.tile_n // 512, (cfg.slices - 1) * cfg.part_m * cfg.tile_n // 512 // cfg.sharers
    stores, loads = code.find("STG.E.128.STRONG.GPU"), code.find("LDG.E.128.STRONG.GPU")
    assert (len(stores), len(loads)) == (blocks, others) and not code.counts()["REDG"]
    assert max(code.find("LDG.E.STRONG.GPU")[:1]) < code.find("HGMMA")[0]
    by_tile = cfg.slices <= (16 if cfg.part_m * cfg.tile_n <= 64 * 128 and cfg.consumers < 3 else 8)
    groups = [cfg.slices - 1, min(16, others - cfg.slices + 1)] if by_tile else [min(others, 16)]
    for some in groups:
        assert not any(i.name in ("FADD", "BRA") for i in code.instructions[loads[0]:loads[some - 1]])
        loads = loads[some:]


def expect_moves(cfg, code):
    """A mover waits for the peer to be ready, and signals what has been written, not only read, at system scope."""
    signals = code.find("REDG.E.ADD.STRONG.SYS")
    assert signals and len(signals) == code.counts()["REDG"]
    assert all(released(code, n) for n in signals), "a signal releases at system scope"
    polls = code.find("LDG.E.STRONG.SYS")
    assert polls and all(code.after(n, "CCTL.IVALL", 3) is not None for n in polls), "a poll acquires"
    store = code.find("UTMASTG")[-1]
    signal = next(n for n in signals if n > store)
    assert [n for n in code.find("DEPBAR.LE", "0x0") if store < n < signal], "written at the peer before it is told"


def expect_deliveries(code):
    """A storer waits for the peer, and says that it has come and that it has written, at system scope."""
    signals, polls, stores = code.find("REDG.E.ADD.STRONG.SYS"), code.find("LDG.E.STRONG.SYS"), code.find("UTMASTG")
    assert len(signals) == code.counts()["REDG"] >= 2 and all(released(code, n) for n in signals)
    assert len(polls) >= 2 and all(code.after(n, "CCTL.IVALL", 3) is not None for n in polls), "a poll acquires"
    last = next(n for n in signals if n > stores[-1])
    assert [n for n in code.find("DEPBAR.LE", "0x0") if stores[-1] < n < last], "written at the peers before they are told"


def expect_signals(code):
    """Release and acquire at system scope, and the order around them."""
    signals = code.find("REDG.E.ADD.STRONG.SYS")
    assert len(signals) >= 2 and len(signals) == code.counts()["REDG"], "signals have system scope"
    assert all(released(code, n) for n in signals), "a signal releases at system scope"
    polls = [n for n in code.find("LDG.E.STRONG.SYS")]
    assert polls and all(code.after(n, "CCTL.IVALL", 3) is not None for n in polls), "a poll acquires"
    stores = code.find("UTMASTG") or code.find("UTMAREDG")
    signal = next(n for n in signals if n > stores[-1])
    written, fence = code.before(signal, "CCTL.IVALL", 60), code.before(signal, "FENCE.VIEW.ASYNC", 60)
    drained = [n for n in code.find("DEPBAR.LE", "0x0") if stores[-1] < n < signal]
    assert drained and written and fence and drained[-1] < written < fence < code.before(signal, "MEMBAR.ALL.SYS", 6), \
        "the storer waits until C is written, fences the proxies, releases, signals"
    assert code.find("LDG.E.128.STRONG.SYS") and code.find("STG.E.128.STRONG.SYS"), "16 bytes at a time"


@pytest.mark.parametrize("fields", [dict(tile_n=128, stages=6, ping_pong=True, direct=True, ahead=1), dict(tile_n=256, c_stages=2), dict(
    tile_n=192, ping_pong=True), dict(tile_n=128, stages=6, slices=8, direct=True)], ids=lambda f: repr(f)[5:60])
@pytest.mark.parametrize("how", ["1", "waits"])
def test_what_records_keeps_its_main_loop(how, fields, disassemble, monkeypatch):
    """Of all threads one stores an interval, without a branch: else the loop of the next task would be divergent."""
    monkeypatch.setenv("PKNUMBA_TIMELINE", how)
    cfg = GemmConfig(**fields)
    cubin, record = lowering.build(Gemm.for_config(cfg).plan(cfg))
    assert (record["spill"], record["stack"], record["notices"]) == (0, 0, [])
    code = disassemble(cubin)
    assert code.counts()["CS2R"] > 0
    expect_main_loop(cfg, code)
