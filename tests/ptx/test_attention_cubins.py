"""attention compiles to a cubin, with no GPU, for every width; its machine code is what it should be."""

import pytest

from pknumba import lowering
from pknumba.config import AttentionConfig, attention_config
from pknumba.kernels import Attention
from pknumba.tiles import Semaphore

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

#: What calls choose, and the most that check() allows.
CASES = [attention_config(*case) for case in ((64, True), (128, True), (256, False))]
CASES += [attention_config(128).replace(dtype="float16"), AttentionConfig(consumers=2, kv=160, stages=2, q_stages=1, causal=True)]


def label(cfg):
    return f"{cfg.width}{'-causal' * cfg.causal}-{cfg.consumers}x{cfg.kv}-{cfg.dtype}"


@pytest.mark.parametrize("cfg", CASES, ids=label)
def test_cubin(cfg, disassemble):
    cfg.check()
    cubin, record = lowering.build(Attention.plan(cfg))
    threads = 128 * (cfg.consumers + 1)
    assert (record["spill"], record["stack"], record["notices"], record["threads"]) == (0, 0, [], threads)
    assert record["registers"] * threads <= 65536
    code = disassemble(cubin)
    counts = code.counts()
    for absent in ("CALL", "LDL", "STL"):
        assert counts[absent] == 0, f"{absent}: a call or local memory"
    expect_instructions(cfg, code, counts)
    expect_main_loop(cfg, code)
    assert counts["ACQBULK"] == counts["PREEXIT"] == 1 and code.find("ACQBULK") < code.find("UTMALDG"), "waits for the last kernel"


def expect_instructions(cfg, code, counts):
    """As many of each as the configuration says."""
    scores, results = code.find(f"HGMMA.64x{cfg.kv}x16.F32"), code.find(f"HGMMA.64x{cfg.width}x16.F32")
    if cfg.kv != cfg.width:
        assert len(scores) == 2 * cfg.width // 16 and len(results) == 2 * cfg.kv // 16, "the first block, the loop, the last block"
    assert counts["HGMMA"] == 2 * (cfg.width + cfg.kv) // 16
    assert all((".BF16" in code.instructions[n].name) == (cfg.dtype == "bfloat16") for n in scores + results)
    boxes = cfg.width // 64
    tile = boxes * cfg.consumers if boxes > 1 else 1                # boxes that move a tile of Q or O
    assert len(code.find("UTMALDG.4D")) == counts["UTMALDG"] == 2 * boxes + tile
    assert len(code.find("UTMASTG.4D")) == counts["UTMASTG"] == tile * counts["UTMACMDFLUSH"]
    assert counts["STSM"] == cfg.width // 16
    semaphores = sum(d.n for d in Attention.shared(cfg) if isinstance(d, Semaphore))
    assert len(code.find("SYNCS.EXCH")) == semaphores, "every semaphore is initialised once"
    assert counts["USETMAXREG"] == (2 if Attention.registers(cfg)[0] else 0)


def expect_main_loop(cfg, code):
    """Q K of the next block, P V of this one, then every exponential before the wait for P V; descriptors in uniform registers."""
    products = code.find("HGMMA")
    loop = products[cfg.width // 16:len(products) - cfg.kv // 16]
    for a, b in zip(loop, loop[1:]):
        if b - a < 20:
            moves = sum(i.name == "R2UR" for i in code.instructions[a:b])
            assert moves <= 1, f"{moves} R2UR between two products: descriptors go through ordinary registers"
    waits = [n for n in code.find("WARPGROUP.DEPBAR") if n > loop[-1]][:2]
    assert [code.instructions[n].operands[-3:] for n in waits] == ["0x1", "0x0"], "scores first, the product with V later"
    powers = [n for n in code.find("MUFU.EX2") if waits[0] < n < waits[1]]
    assert len(powers) >= cfg.kv // 2, f"{len(powers)} exponentials before the wait for the product with V"
    assert sum(code.instructions[n].name.startswith("STS") for n in range(*waits)) == 1, "the sum that pins them"
    multiplies = [n for n in code.find("FMNMX") if waits[0] < n < waits[1]]
    assert len(multiplies) >= cfg.kv // 2 - 2, "maxima of the block"
