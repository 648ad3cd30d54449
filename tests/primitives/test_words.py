"""The PTX words that every primitive's lowering contains, in tiny kernels that are compiled once."""

import subprocess
from pathlib import Path

import pytest

from . import kernels as k
from . import rank_kernels as r
from .attention import Attention, AttentionConfig
from .tiny import TinyConfig, cubin, lacking, ptx

pytestmark = pytest.mark.ptx

BF16, F16, F32 = (TinyConfig(dtype=dtype) for dtype in ("bfloat16", "float16", "float32"))
PAIR, TURNS = TinyConfig(consumers=2), TinyConfig(consumers=2, ping_pong=True)
COMM = {name: TinyConfig(dtype=name, rows=8, cols=32) for name in ("bfloat16", "float16", "float32")}
RELAY = TinyConfig(rows=2, cols=32, pieces=8)
VECTORS = "ld.relaxed.sys.global.v4.b32", "st.relaxed.sys.global.v4.b32"

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {
    "wait": (k.Through, BF16, "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"),
    "arrive": (k.Through, BF16, "mbarrier.arrive.release.cta.shared::cta.b64"),
    "expect": (k.Through, BF16, "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r", "], 8192;"),
    "load_async": (k.Through, BF16, "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"),
    "store_async": (k.Through, BF16, "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", "cp.async.bulk.commit_group;"),
    "store_async_read_wait": (k.Through, BF16, "cp.async.bulk.wait_group.read 0;"),
    "store_async_wait": (k.StoreAdd, BF16, "cp.async.bulk.wait_group 0; fence.proxy.async;"),
    "store_add_async": (k.StoreAdd, BF16, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"),
    "store_min_async": (k.StoreMin, BF16, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.min.tile.bulk_group"),
    "store_max_async": (k.StoreMax, BF16, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.tile.bulk_group"),
    "fence_async": (k.Through, BF16, "fence.proxy.async.shared::cta;", "bar.sync 1, 128;"),
    "load": (k.Through, BF16, "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "bar.sync 1, 128;"),
    "store": (k.Through, BF16, "stmatrix.sync.aligned.m8n8.x4.shared.b16", "cvt.rn.bf16x2.f32"),
    "add_panel": (k.Twice, F32, "ld.shared.v2.f32", "add.f32", "bar.sync 1, 128;"),
    "load_rows": (k.Softmax, BF16, "ld.global.f32"),
    "store_rows": (k.Softmax, BF16, "st.global.f32"),
    "mask": (k.Softmax, BF16, "setp.gt.s32", "selp.f32"),
    "exp2": (k.Softmax, BF16, "ex2.approx.ftz.f32"),
    "log2": (k.Softmax, BF16, "lg2.approx.ftz.f32"),
    "row_sum": (k.Softmax, BF16, "add.f32", "shfl.sync.bfly.b32"),
    "row_max": (k.Extremes, F32, "max.NaN.f32", "shfl.sync.bfly.b32"),
    "maximum": (k.Extremes, F32, "max.NaN.f32"),
    "minimum": (k.Extremes, F32, "min.NaN.f32"),
    "cast": (k.Extremes, F32, "cvt.rn.bf16x2.f32"),
    "fill": (k.Constants, F32, "0f40600000"),                   # 1.5 + 2, added by the compiler
    "fill_rows": (k.Numbers, BF16, "cvt.rn.f32.s32"),
    "accumulator": (k.FromShared, BF16, "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"),
    "mma": (k.FromShared, BF16, "wgmma.fence.sync.aligned;", "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "wgmma.commit_group"),
    "mma_wait": (k.FromShared, BF16, "wgmma.wait_group.sync.aligned 0;"),
    "as_operand": (k.FromRegisters, F16, "cvt.rn.f16x2.f32"),
    "sync": (k.Swap, PAIR, "bar.sync 4, 256;"),
    "turn_first": (k.Turns, TURNS, "bar.arrive 8, 256;"),
    "turn_wait": (k.Turns, TURNS, "bar.sync 8, 256;", "bar.sync 9, 256;"),
    "turn_pass": (k.Turns, TURNS, "bar.arrive 8, 256;", "bar.arrive 9, 256;"),
    "i32": (k.Numbers, BF16, "add.s32"),
    "div": (k.Numbers, BF16, "div.u32"),
    "mod": (k.Numbers, BF16, "div.u32", "sub.s32"),              # numba-cuda's LLVM makes the remainder from the quotient
    "least": (k.Numbers, BF16, "min.s32"),
    "ring": (k.Numbers, BF16, "div.u32", "and.b32"),
    "tile_coord": (k.Numbers, BF16, "div.u32"),
    "signal": (r.Relay, RELAY, "red.release.sys.global.add.u32"),
    "signal_all": (r.Relay, RELAY, "fence.proxy.async;", "bar.warp.sync 0xffffffff;", "fence.acq_rel.sys;",
                   "red.relaxed.sys.global.add.u32"),
    "wait_until": (r.Relay, RELAY, "ld.acquire.sys.global.u32", "mov.u64 t, %globaltimer;", "vote.sync.all.pred"),
    "keep_epoch": (r.Relay, RELAY, "st.global.u32 [c+32]"),
    "barrier": (r.Meet, COMM["bfloat16"], "red.relaxed.sys.global.add.u32", "ld.acquire.sys.global.u32"),
    "all_reduce": (r.AllReduce, COMM["bfloat16"], *VECTORS, "ld.relaxed.sys.global.b16"),
    "reduce": (r.Reduce, COMM["float16"], *VECTORS, "cvt.f32.f16"),
    "take": (r.Take, COMM["float32"], *VECTORS, "st.relaxed.sys.global.f32"),
    "broadcast": (r.Broadcast, COMM["float32"], *VECTORS, "st.relaxed.sys.global.f32"),
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_words(name):
    kernel, cfg, *words = WORDS[name]
    assert lacking(words, kernel, cfg) == []


@pytest.mark.parametrize("kernel, cfg, words", [
    (k.Through, F32, ["ld.shared.v2.f32", "st.shared.v2.f32"]),
    (k.Through, F16, ["cvt.f32.f16", "cvt.rn.f16x2.f32"]),
    (k.FromRegisters, F16, ["wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"]),
    (k.Arithmetic, F32, ["fma.rn.f32", "rcp.approx.ftz.f32"]),
    (r.Relay, RELAY, ["bar.sync 4;"]),                         # sync of warps: whoever gave up is not waited for
], ids=lambda x: getattr(x, "__name__", ""))
def test_words_of_variants(kernel, cfg, words):
    assert lacking(words, kernel, cfg) == []


LD_REDUCE, ST = "multimem.ld_reduce.relaxed.sys.global.", "multimem.st.relaxed.sys.global."


@pytest.mark.parametrize("dtype, op, load, store", [
    ("bfloat16", "sum", "add.acc::f32.v4.bf16x2", "v4.bf16x2"), ("float16", "sum", "add.acc::f32.v4.f16x2", "v4.f16x2"),
    ("float32", "sum", "add.v4.f32", "v4.f32"), ("bfloat16", "min", "min.v4.bf16x2", "v4.bf16x2"),
    ("float16", "max", "max.v4.f16x2", "v4.f16x2")])
def test_multicast(dtype, op, load, store):
    """The switch's instructions are written and assembled; no test runs them."""
    cfg = COMM[dtype].replace(op=op, multicast=True)
    text = ptx(r.AllReduce, cfg)
    assert LD_REDUCE + load in text and ST + store in text
    record = cubin(r.AllReduce, cfg)[1]
    assert record["spill"] == 0 and record["notices"] == []


def test_multicast_of_the_others():
    cfg = COMM["bfloat16"].replace(multicast=True)
    text = ptx(r.Reduce, cfg)
    assert LD_REDUCE + "add.acc::f32.v4.bf16x2" in text and ST not in text
    text = ptx(r.Broadcast, cfg)
    assert ST + "v4.bf16x2" in text and LD_REDUCE not in text
    assert "multimem" not in ptx(r.AllReduce, COMM["bfloat16"])


def _disassembled(code, tmp_path):
    """SASS of a cubin; skips where there is no nvdisasm."""
    import nvidia
    tool = next((t for root in nvidia.__path__ for t in Path(root).glob("cu*/bin/nvdisasm")), None)
    if tool is None:
        pytest.skip("no nvdisasm")
    path = tmp_path / "kernel.cubin"
    path.write_bytes(code)
    return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout


def test_assembled_multicast(tmp_path):
    text = _disassembled(cubin(r.AllReduce, COMM["bfloat16"].replace(multicast=True))[0], tmp_path)
    assert "LDGMC.E.F32ADD.BF16x8" in text


@pytest.mark.parametrize("kernel, cfg", [(k.FromRegisters, BF16), (k.FromRegisters, BF16.replace(rows=128, cols=128)),
                                         (k.Softmax, BF16.replace(rows=128, cols=128)), (k.Turns, TURNS),
                                         (Attention, AttentionConfig(d=128, kv=128))], ids=lambda x: getattr(x, "__name__", ""))
def test_assembled_without_spills(kernel, cfg):
    record = cubin(kernel, cfg)[1]
    assert record["spill"] == record["stack"] == 0 and record["notices"] == []
