"""Attention over ranks compiles to cubins, with no GPU, in the configurations that calls choose; its machine code is what it should be."""

import pytest

from pknumba import lowering
from pknumba.config import attention_config, decode_config
from pknumba.kernels import DecodeAttention, RingAttention, UlyssesAttention
from pknumba.lowering import entry
from pknumba.tiles import Semaphore

from .test_cubins import released

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

#: (kernel, width, causal).
CASES = [(RingAttention, 128, True), (UlyssesAttention, 64, False), (DecodeAttention, 128, False)]


@pytest.mark.parametrize("kernel, width, causal", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_cubin(kernel, width, causal, disassemble):
    cfg = decode_config(width) if kernel is DecodeAttention else attention_config(width, causal, kernel.config)
    cfg = cfg.replace(zigzag=causal) if cfg.spread else cfg
    cfg.check()
    cubin, record = lowering.build(kernel.plan(cfg))
    threads = 128 * (cfg.consumers + 1)
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], threads)
    assert record["registers"] * threads <= 65536
    code = disassemble(cubin)
    counts = code.counts()
    for absent in ("CALL", "LDL", "STL"):
        assert counts[absent] == 0, f"{absent}: a call or local memory"
    assert counts["HGMMA"] == 2 * (cfg.width + cfg.kv) // 16, "the first block, the loop, the last block"
    assert counts["USETMAXREG"] == (2 if kernel.registers(cfg)[0] else 0)
    semaphores = sum(d.n for d in kernel.shared(cfg) if isinstance(d, Semaphore))
    assert len(code.find("SYNCS.EXCH")) == semaphores, "every semaphore is initialised once"
    expect_signals(kernel, code)
    (expect_merge if kernel is DecodeAttention else expect_moves)(code)


def expect_signals(kernel, code):
    """What is stored is written before a signal releases it, polls acquire, all at system scope."""
    signals = code.find("REDG.E.ADD.STRONG.SYS")
    assert signals and len(signals) == code.counts()["REDG"] and all(released(code, n) for n in signals)
    loads = code.find("LDG.E.STRONG.SYS")
    polls = [n for n in loads if code.after(n, "CCTL.IVALL", 3) is not None]
    assert polls and (polls == loads or kernel is DecodeAttention), "a poll acquires; only sums of parts are read like that, too"


def expect_moves(code):
    """A mover waits until its chunk is written at the peer before it tells."""
    store = [n for n in code.find("UTMASTG.3D")][-1]
    signal = next(n for n in code.find("REDG.E.ADD.STRONG.SYS") if n > store)
    assert [n for n in code.find("DEPBAR.LE", "0x0") if store < n < signal]
    assert code.find("UTMALDG.4D") and code.find("UTMASTG.4D")


def expect_merge(code):
    """Parts leave as float32 and are read by the copy engine; their sums are read past the first-level cache."""
    assert code.find("UTMALDG.3D") and code.find("UTMASTG.3D") and code.find("LDG.E.STRONG.SYS")
    part = code.find("UTMASTG.3D")[-1]
    signal = next(n for n in code.find("REDG.E.ADD.STRONG.SYS") if n > part)
    assert [n for n in code.find("DEPBAR.LE", "0x0") if part < n < signal], "written before it is told"


def test_movers_start_first():
    """The first blocks of the grid move, the next compute from place 0 on: consumers wait for movers, of whatever rank."""
    for kernel in (RingAttention, UlyssesAttention):
        text = entry._source(kernel.plan(attention_config(128, False, kernel.config)))
        assert "block = i32(block - parameters.comm_sms)\n    if block >= 0:" in text
        assert "worker = i32((block + parameters.comm_sms) * 16 + warp())" in text
