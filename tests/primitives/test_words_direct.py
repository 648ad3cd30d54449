"""Panels that consumers store and operands that they ask for: their PTX, in the kernel that uses them."""

import pytest

from pknumba.config import GemmConfig
from pknumba.kernels import Gemm

from .tiny import lacking, ptx

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(120)]

CFG = GemmConfig(tile_n=64, stages=4, c_stages=1, direct=True, ahead=2)
KERNEL = Gemm.for_config(CFG)
WORDS = {"follow": ("griddepcontrol.wait;",),
         "store_panel": ("stmatrix.sync.aligned.m8n8.x4", "bar.warp.sync 0xffffffff;", "ld.shared.v4.b32", "@p st.global.v4.b32 ["),
         "prefetch": ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [",)}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_words(name):
    assert lacking(WORDS[name], KERNEL, CFG) == []


def test_what_is_asked_for_early():
    """A and B, before the loader waits for the kernel before this one and loads; consumers wait before they store."""
    text, wait = ptx(KERNEL, CFG), "griddepcontrol.wait"
    asked, load = text.rindex("cp.async.bulk.prefetch.tensor"), text.index("cp.async.bulk.tensor.2d.shared")
    assert asked < text.index(wait, asked) < load and text.rindex(wait, 0, text.index("@p st.global.v4.b32 [")) >= 0
    assert "cp.async.bulk.tensor.2d.global" not in text, "the copy engine stores nothing"
