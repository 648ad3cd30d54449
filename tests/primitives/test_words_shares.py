"""Shares of register tiles: their PTX and machine code, in the kernel that uses them."""

import pytest

from pknumba.config import GemmConfig
from pknumba.kernels import Gemm

from .tiny import lacking, ptx

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(120)]

#: Two consumers, four slices: four blocks sum 16 columns each.
CFG = GemmConfig(tile_n=64, stages=4, c_stages=1, slices=4)
KERNEL = Gemm.for_config(CFG)
WORDS = {"shares_phase": ("ld.relaxed.gpu.global.b32 ",),
         "store_shares": ("lop3.b32 v0,", "4294967294,", "0xea;", "st.relaxed.gpu.global.v4.b32 ["),
         "reduce_shares": ("ld.relaxed.gpu.global.v4.b32 {", "0x7e;", "and.b32 m, m, 1;", "%globaltimer", "add.f32")}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_words(name):
    assert lacking(WORDS[name], KERNEL, CFG) == []


def test_each_share_is_left_by_all_others_and_read_once():
    """A consumer's tile has 64 x 64 / 512 = 8 blocks in 4 shares; three of others are added; no fence, no signal."""
    text = ptx(KERNEL, CFG)
    assert text.count("st.relaxed.gpu.global.v4.b32") == 8 and text.count("ld.relaxed.gpu.global.v4.b32") == 3 * 2
    assert not any(word in text for word in ("red.release", "ld.acquire"))
