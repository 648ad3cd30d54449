"""Kernels of groups of rows compile to cubins in every configuration that ships; their main loops are those of the GEMM."""

import pytest

from pknumba import config, lowering
from pknumba.kernels import GroupedGemm

from .test_cubins import expect_instructions, expect_main_loop, expect_panels_handed_over

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

SHIPPED = [fields for fields, *_ in config._GEMMS]


def cases():
    """(kernel, configuration): all that ships, dtypes and layouts of B in turn."""
    for i, fields in enumerate([{}, *SHIPPED]):
        for layout in (True, False) if i < 3 else (i % 2 == 0,):
            cfg = GroupedGemm.config(b_transposed=layout, dtype=("bfloat16", "float16")[i % 2], **fields)
            yield pytest.param(GroupedGemm, cfg, id=f"{i}-{'nk' if layout else 'kn'}")


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
