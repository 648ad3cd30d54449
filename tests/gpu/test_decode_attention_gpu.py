"""decode_attention on GPUs: ranks as threads that share one, or one each."""

import numpy as np
import pytest

from pknumba import DecodeAttention, decode_attention
from pknumba.config import decode_config
from pknumba.runtime import driver

from ..kernels.attending import assert_attention, definition, exact_heads, heads
from .arrays import on_device, to_numpy, torch
from .building import build
from .test_gemm_all_reduce_gpu import ranks

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    build([(DecodeAttention, decode_config(d)) for d in (64, 128, 256)])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_definition(size):
    """Uneven numbers of keys, none on some rank, grouped heads, against float64."""
    def main(world):
        for batch, queries, pairs, keys, d in ((2, 8, 2, 3000, 128), (1, 4, 4, 100, 64), (3, 70, 1, 900, 128), (1, 16, 8, 500, 256)):
            q, k, v = heads(np.random.default_rng(keys), batch, 1, keys, queries, pairs, d)
            ends = np.linspace(0, keys, size + 1).astype(int)
            ends[1:-1] = np.minimum(ends[1:-1] + 17, keys)
            mine = slice(ends[world.rank], ends[world.rank + 1])
            arrays = [on_device(q[:, :, 0]), on_device(k[:, :, mine]), on_device(v[:, :, mine])]
            o, lse = decode_attention(world, *arrays)
            world.synchronize()
            assert_attention(to_numpy(o)[:, :, None], lse.cpu().numpy()[:, :, None], definition(q, k, v), f"{keys} rank {world.rank}")
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4])
def test_calls_in_a_row(size):
    """New values in the same arrays, nothing between the calls; exact, the same bits on every rank."""
    def main(world):
        keys, wrong = 1200, torch.zeros((), dtype=torch.int64, device="cuda")
        sets = [exact_heads(np.random.default_rng(n), 4, 1, keys, 8, 2, 128) for n in range(3)]
        mine = slice(keys * world.rank // size, keys * (world.rank + 1) // size)
        on_gpu = [[on_device(q[:, :, 0]), on_device(k[:, :, mine]), on_device(v[:, :, mine]), on_device(o[:, :, 0].astype(q.dtype))]
                  for q, k, v, o, _ in sets]
        arrays, out = [torch.empty_like(x) for x in on_gpu[0][:3]], torch.empty_like(on_gpu[0][3])
        for call in range(200):
            for array, values in zip(arrays, on_gpu[call % 3]):
                array.copy_(values)
            out.fill_(float("nan"))
            decode_attention(world, *arrays, scale=1.0, out=out)
            wrong += (out != on_gpu[call % 3][3]).any()
        world.synchronize()
        assert int(wrong) == 0
    ranks(size, main)
