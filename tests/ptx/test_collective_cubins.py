"""Every collective compiles to a cubin, with no GPU, in every dtype; its machine code is what it should be."""

import pytest

from pknumba import lowering
from pknumba.config import CommConfig, NormConfig
from pknumba.kernels import AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter, SendRecv
from pknumba.kernels.all_gather import AllGatherParcels, AllGatherPush
from pknumba.kernels.all_reduce import AllReducePush, OneShot
from pknumba.kernels.all_reduce_rmsnorm import AllReduceRmsNorm, OneShotRmsNorm
from pknumba.kernels.all_to_all import AllToAllParcels, AllToAllPush, AllToAllRagged
from pknumba.kernels.reduce_scatter import ReduceScatterParcels, ReduceScatterPush

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

DTYPES = ("bfloat16", "float16", "float32", "int32")
COPIES = dict(copy_in=True, copy_out=True)
#: The configurations that calls choose.
CASES = [(AllReduce, dict(dtype=d, unroll=u, **c)) for d in DTYPES for u, c in ((4, {}), (1, COPIES))]
CASES += [(AllReduce, dict(dtype="bfloat16", op="min", unroll=4)), (AllReduce, dict(dtype="int32", op="max", unroll=4, **COPIES))]
CASES += [(AllToAll, dict(dtype=d, unroll=8, copy_in=True)) for d in ("bfloat16", "float32")]
CASES += [(ReduceScatter, dict(dtype=d, unroll=4)) for d in DTYPES]
CASES += [(k, dict(copy_in=True, unroll=2)) for k in (AllGather, Broadcast, Gather, Scatter, SendRecv)]
CASES += [(AllToAllRagged, dict(unroll=u, copy_in=True)) for u in (8, 2)]
CASES += [(AllGather, dict(unroll=8)), (Reduce, dict(copy_in=True, unroll=1))]
CASES += [(OneShot, dict(dtype=d, op=op)) for d in DTYPES for op in ("sum", "max")]
PARCELS = AllGatherParcels, ReduceScatterParcels, AllToAllParcels
CASES += [(k, dict(dtype=d)) for k, d in zip(PARCELS, DTYPES)] + [(ReduceScatterParcels, dict(dtype="int32", op="max"))]
CASES += [(AllGatherPush, dict(unroll=8)), (AllToAllPush, dict(unroll=8)), (ReduceScatterPush, dict(unroll=4, copy_out=True))]
CASES += [(AllReducePush, dict(unroll=4)), (AllReducePush, dict(unroll=1, dtype="float32", copy_out=True))]
CASES += [(AllReduceRmsNorm, dict(unroll=u, **c)) for u, c in ((4, COPIES), (1, {}), (4, dict(dtype="float32")))]
CASES += [(OneShotRmsNorm, dict(dtype=d)) for d in ("bfloat16", "float16", "float32")]
CASES += [(AllReduce, dict(warps=4, unroll=4)), (ReduceScatter, dict(warps=4, unroll=4)), (AllToAll, dict(warps=4, unroll=8, copy_in=True))]
CASES += [(AllToAll, dict(warps=4, unroll=u, at_once=a)) for u, a in ((8, 4), (4, 8), (4, 16), (2, 8))]
CASES += [(k, dict(warps=4, unroll=u, at_once=a)) for k in (AllReduce, ReduceScatter) for u, a in ((4, 16), (1, 8))]
CASES += [(AllReduceRmsNorm, dict(warps=4, unroll=u, at_once=a, **COPIES)) for u, a in ((2, 4), (4, 8))]
CASES += [(AllReduce, dict(warps=4, unroll=2, at_once=8)), (OneShot, dict(warps=1)), (AllGatherParcels, dict(warps=2))]


def label(case):
    kernel, fields = case
    return "-".join([kernel.__name__, *(f"{k}={v}" for k, v in fields.items())])


@pytest.mark.parametrize("case", CASES, ids=label)
def test_cubin(case, disassemble):
    kernel, fields = case
    cfg = kernel.config(**fields)
    cfg.check()
    cubin, record = lowering.build(kernel.plan(cfg))
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], 32 * cfg.warps)
    assert record["registers"] <= 128, "four blocks of four warps have room on an SM"
    code = disassemble(cubin)
    counts = code.counts()
    for absent in ("CALL", "LDL", "STL"):
        assert counts[absent] == 0, f"{absent}: a call or local memory"
    assert counts["ACQBULK"] == counts["PREEXIT"] == 1 and code.find("ACQBULK") < code.find("LDG"), "waits for the last kernel"
    for name in (i.name for i in code.instructions if i.name.startswith(("LDG.E.128", "LDG.E.U16", "STG.E"))):
        assert ".STRONG.SYS" in name, f"{name}: peers' memory is read and written past the first-level cache"
    if kernel in (OneShot, OneShotRmsNorm, *PARCELS):
        expect_packets(code, cfg)
    else:
        expect_handshake(code, cfg, counts_blocks=kernel is AllReducePush)
    if kernel.config is NormConfig:
        assert counts["MUFU"] >= 2 and counts["SHFL"] >= 10 and code.find("BAR.SYNC"), "a root, and sums over lanes and warps"


def expect_packets(code, cfg):
    """16 bytes at a time both ways; no fence but that of a hang's record, no signal to others."""
    assert code.find("LDG.E.128.STRONG.SYS") and code.find("STG.E.128.STRONG.SYS")
    assert len(code.find("REDG")) == len(code.find("REDG.E.ADD.STRONG.GPU")) == 1, "one count, of this rank"
    first = code.find("STG.E.128.STRONG.SYS")[0]
    barriers = [n for n in code.find("MEMBAR.ALL.SYS") if n < first]
    assert not barriers, "packets are sent without a fence"


def expect_handshake(code, cfg, counts_blocks):
    """Signals release, polls acquire, at system scope; as many loads in flight as a lane moves at once."""
    signals = code.find("REDG.E.ADD.STRONG.SYS")
    own = code.find("REDG.E.ADD.STRONG.GPU")                    # blocks of this rank that have read the call's number
    assert len(own) == counts_blocks and signals and len(signals) + len(own) == code.counts()["REDG"]
    assert code.find("MEMBAR.ALL.SYS")[0] < signals[0], "a signal releases"
    loads = code.find("LDG.E.128.STRONG.SYS")
    polls = [n for n in code.find("LDG.E.STRONG.SYS") if code.after(n, "CCTL.IVALL", 2) is not None]
    assert polls and code.find("BAR.SYNC"), "polls acquire, and the block meets"
    assert len(loads) % cfg.unroll == 0
    for i in range(0, len(loads), cfg.unroll):
        group = code.instructions[loads[i]:loads[i + cfg.unroll - 1]]
        assert not [x.name for x in group if x.name.startswith(("STG", "BAR", "MEMBAR"))], "loads are issued before the first is used"


@pytest.mark.parametrize("fields, words", [(dict(dtype="bfloat16"), "LDGMC.E.F32ADD.BF16x8"), (dict(dtype="float32"), "LDGMC.E.ADD.F32x4"),
                                           (dict(dtype="float16", op="max"), "LDGMC.E.MAX.F16x8")], ids=str)
def test_multicast(fields, words, disassemble):
    """The switch's instructions, 16 bytes at a time, are assembled; no test runs them."""
    cubin, record = lowering.build(AllReduce.plan(CommConfig(algorithm="multimem", **fields)))
    assert record["spill"] == record["stack"] == 0 and record["notices"] == []
    code = disassemble(cubin)
    assert len(code.find(words)) == 4, [i.name for i in code.instructions if "MC" in i.name]
