"""Recording: the PTX of stamps and intervals in a kernel that is compiled for it, and none of it in one that is not."""

import pytest

from pknumba.config import GemmConfig
from pknumba.kernels import Gemm

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(120)]

WORDS = {"stamp": ("%globaltimer_lo",), "record": ("st.global.v4.u32",)}
CONFIG = GemmConfig(tile_m=64, tile_n=64, stages=2, c_stages=1, consumers=1)


def text():
    from pknumba.lowering.entry import to_ptx
    return to_ptx(Gemm.plan(CONFIG))


@pytest.mark.parametrize("on", [True, False])
def test_words(on, monkeypatch):
    monkeypatch.setenv("PKNUMBA_TIMELINE", "1" if on else "0")
    code = text()
    for words in WORDS.values():
        assert [w for w in words if (w in code) is not on] == []
