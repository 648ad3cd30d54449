"""Attention over sequences that ranks share, on GPUs: ranks as threads that share one, or one each."""

import numpy as np
import pytest

from pknumba import Attention, RingAttention, UlyssesAttention, ring_attention, ring_rows, ulysses_attention
from pknumba.config import attention_config
from pknumba.runtime import driver

from ..kernels.attending import assert_attention, definition, exact_heads, heads, part
from .arrays import on_device, to_numpy, torch
from .building import build
from .test_gemm_all_reduce_gpu import ranks, under_mps

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    jobs = []
    for d, dtype in ((128, "bfloat16"), (64, "float16"), (64, "bfloat16")):
        for causal, zigzag in ((False, False), (True, True), (True, False)):
            jobs.append((RingAttention, attention_config(d, causal, RingAttention.config).replace(zigzag=zigzag, dtype=dtype)))
        for causal in (False, True):
            jobs.append((UlyssesAttention, attention_config(d, causal, UlyssesAttention.config).replace(dtype=dtype)))
            jobs.append((Attention, attention_config(d, causal).replace(dtype=dtype)))
    build(jobs)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("causal, zigzag", [(False, None), (True, None), (True, False)])
def test_ring(size, causal, zigzag):
    """Uneven shares, grouped heads, both widths, against float64."""
    def main(world):
        for rows, d, dtype in ((700 + size, 128, "bfloat16"), (331, 64, "float16"), (2, 128, "bfloat16")):
            inputs = heads(np.random.default_rng(rows), 1, rows, rows, 4, 2, d, dtype)
            mine = ring_rows(rows, size, world.rank, causal if zigzag is None else zigzag)
            arrays = [on_device(x[:, :, mine]) for x in inputs]
            o, lse = ring_attention(world, *arrays, causal=causal, zigzag=zigzag, rows=rows)
            world.synchronize()
            assert_attention(to_numpy(o), lse.cpu().numpy(), part(definition(*inputs, causal), mine), f"{rows} {d} rank {world.rank}")
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4])
def test_ring_calls_in_a_row(size):
    """New values in the same arrays, nothing between the calls; exact, the same bits every time."""
    def main(world):
        rows, wrong = 900, torch.zeros((), dtype=torch.int64, device="cuda")
        sets = [exact_heads(np.random.default_rng(n), 1, rows, rows, 4, 4, 128, causal=True) for n in range(3)]
        mine = ring_rows(rows, size, world.rank, True)
        on_gpu = [[on_device(x[:, :, mine].astype(inputs[0].dtype)) for x in inputs[:4]] for inputs in sets]
        arrays, out = [torch.empty_like(x) for x in on_gpu[0][:3]], torch.empty_like(on_gpu[0][0])
        for call in range(100):
            for array, values in zip(arrays, on_gpu[call % 3]):
                array.copy_(values)
            out.fill_(float("nan"))
            ring_attention(world, *arrays, causal=True, rows=rows, scale=1.0, out=out)
            wrong += (out != on_gpu[call % 3][3]).any()
        world.synchronize()
        assert int(wrong) == 0
    ranks(size, main)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_ulysses(size, causal):
    """Uneven shares, grouped heads, both layouts, against float64."""
    def main(world):
        for rows, d, between in ((700 + size, 128, False), (331, 64, True), (2, 128, True)):
            inputs = heads(np.random.default_rng(rows), 1, rows, rows, 2 * size, size, d, between=between)
            mine = ring_rows(rows, size, world.rank)
            arrays = [on_device(x.swapaxes(1, 2)[:, mine]).transpose(1, 2) if between else on_device(x[:, :, mine]) for x in inputs]
            o = ulysses_attention(world, *arrays, causal=causal, rows=rows)
            world.synchronize()
            want = part(definition(*inputs, causal), mine)
            assert_attention(to_numpy(o), want.lse, want, f"{rows} {d} rank {world.rank}")
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4])
def test_ulysses_calls_in_a_row(size):
    """New values in the same arrays, nothing between the calls; exact, the same bits every time."""
    def main(world):
        rows, wrong = 900, torch.zeros((), dtype=torch.int64, device="cuda")
        sets = [exact_heads(np.random.default_rng(n), 1, rows, rows, 4, 4, 128, causal=True) for n in range(3)]
        mine = ring_rows(rows, size, world.rank)
        on_gpu = [[on_device(x[:, :, mine].astype(inputs[0].dtype)) for x in inputs[:4]] for inputs in sets]
        arrays, out = [torch.empty_like(x) for x in on_gpu[0][:3]], torch.empty_like(on_gpu[0][0])
        for call in range(100):
            for array, values in zip(arrays, on_gpu[call % 3]):
                array.copy_(values)
            out.fill_(float("nan"))
            ulysses_attention(world, *arrays, causal=True, rows=rows, scale=1.0, out=out)
            wrong += (out != on_gpu[call % 3][3]).any()
        world.synchronize()
        assert int(wrong) == 0
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_processes_under_mps(size):
    """200 calls of each kind, every rank a process: with four on a card, causal rings hung (decision 21)."""
    under_mps(size, "many_attention.py", 240, calls=200)
