"""The PTX words of what an online softmax needs, in the kernel that uses it; and copies of arrays of matrices."""

import pytest

from pknumba.config import AttentionConfig
from pknumba.kernels import Attention

from .kernels import Through
from .tiny import TinyConfig, lacking, ptx

pytestmark = pytest.mark.ptx

CAUSAL = AttentionConfig(causal=True)

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {
    "as_float": (Attention, CAUSAL, "mov.b32"),
    "climb": (Attention, CAUSAL, "sub.f32", "setp.gt.f32", "selp.f32"),
    "rescale": (Attention, CAUSAL, "setp.neu.f32", "vote.sync.any.pred", "mul.f32"),
    "row_numbers": (Attention, CAUSAL, "cvt.rn.f32.s32"),
    "row_shares": (Attention, CAUSAL, "add.f32"),
    "row_total": (Attention, CAUSAL, "shfl.sync.bfly.b32", "add.f32"),
    "most": (Attention, CAUSAL, "max.s32"),
}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_ptx(name):
    kernel, cfg, *words = WORDS[name]
    assert lacking(words, kernel, cfg) == []


def test_copies_of_arrays_of_matrices():
    """Four coordinates, columns first; and a value that is pinned before a wait."""
    text = ptx(Attention, CAUSAL)
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes" in text
    assert "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group" in text and "tensor.2d" not in text
    assert "setp.lt.f32" in text and "@p st.volatile.shared.f32" in text


def test_all_threads_have_read_before_one_arrives():
    """A tile that a warpgroup loads is given back by one thread: a barrier stands between the loads and the arrival."""
    lines = [line.strip() for line in ptx(Through, TinyConfig(consumers=2)).splitlines()]
    last = max(n for n, line in enumerate(lines) if "ldmatrix.sync" in line)
    barrier = next(n for n, line in enumerate(lines) if n > last and "bar.sync 1, 128" in line)
    assert not [line for line in lines[last:barrier] if "mbarrier.arrive" in line]
