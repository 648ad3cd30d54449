"""attention on a GPU: shapes, layouts, dtypes, grouped heads, edges. Results against float64 bounds, with guards around them."""

import numpy as np
import pytest

from pknumba import Attention, AttentionConfig, World, attention
from pknumba.config import attention_config
from pknumba.runtime import driver

from ..kernels.attending import assert_attention, definition, exact_heads, heads
from .arrays import on_device, to_numpy, torch
from .building import build

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]


CONFIGS = [dict(consumers=2, kv=128, stages=2), dict(consumers=2, kv=160, stages=2, q_stages=1), dict(consumers=1, kv=64),
           dict(consumers=3, kv=64, slack=0)]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    both = (False, True)
    build([(Attention, attention_config(d, causal)) for d in (64, 128, 192, 256) for causal in both] +
          [(Attention, AttentionConfig(**fields, causal=causal)) for fields in CONFIGS for causal in both] +
          [(Attention, attention_config(*case).replace(dtype="float16")) for case in ((128, True), (64, False))])


@pytest.fixture
def world():
    with World.local(1, executor="gpu", wait_limit_s=10) as world:
        yield world


def guarded(like):
    """(tensor like q with its layout, the larger one around it), full of NaN."""
    b, h, s, d = like.shape
    between = like.stride(1) < like.stride(2)
    shape = (b + 1, s + 2, h + 2, d + 8) if between else (b + 1, h + 2, s + 2, d + 8)
    around = torch.full(shape, float("nan"), dtype=like.dtype, device="cuda")
    view = around[:b, 1:-1, 1:-1, :d]
    return (view.transpose(1, 2) if between else view), around


def on_gpu(x):
    """A NumPy array as a tensor with its layout."""
    return on_device(x.swapaxes(1, 2)).transpose(1, 2) if x.strides[1] < x.strides[2] else on_device(x)


def check(world, shape, dtype="bfloat16", causal=False, shift=0, between=False, loud=1.0, seed=0, **options):
    b, s, t, h, p, d = shape
    q, k, v = heads(np.random.default_rng(seed), b, s, t, h, p, d, dtype, loud, between)
    want = definition(q, k, v, causal, options.get("scale"), shift)
    out, around = guarded(on_gpu(q))
    o, lse = attention(world, *map(on_gpu, (q, k, v)), causal=causal, shift=shift, out=out, **options)
    assert o is out
    world.synchronize()
    assert_attention(to_numpy(o), lse.cpu().numpy(), want, f"{shape} {dtype} causal={causal} shift={shift}")
    out.fill_(float("nan"))
    assert bool(torch.isnan(around).all()), "something around the result was written"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 96, 128, 192, 256])
def test_widths_and_lengths(world, d, causal):
    for s, t in ((1, 1), (63, 65), (192, 80), (200, 500), (1025, 1023)):
        check(world, (2, s, t, 3, 3, d), causal=causal, seed=s)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layouts_and_groups(world, dtype):
    for between in (False, True):
        check(world, (2, 300, 411, 8, 2, 128), dtype, causal=True, shift=111, between=between, loud=4.0)
        check(world, (1, 257, 130, 6, 1, 64), dtype, between=between, loud=4.0, scale=0.3)


def test_rows_that_see_nothing(world):
    check(world, (1, 300, 100, 2, 2, 128), causal=True, shift=-150)
    check(world, (1, 65, 0, 2, 2, 64))


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_configurations(world, fields):
    for causal in (False, True):
        check(world, (2, 700, 900, 2, 2, 128), causal=causal, loud=4.0, config=AttentionConfig(**fields))


def test_exact(world):
    """Many tiles a block, weights that are 0, 1 or a half: the same bits in every one of many calls."""
    for causal in (False, True):
        q, k, v, o, lse = exact_heads(np.random.default_rng(1), 4, 500, 500, 16, 8, 128, causal=causal)
        arrays = [on_device(x) for x in (q, k, v)]
        for _ in range(20):
            found, sums = attention(world, *arrays, causal=causal, scale=1.0)
            assert (to_numpy(found).astype(np.float32) == o).all()
        assert np.abs(sums.cpu().numpy() - lse).max() < 1e-3


def test_same_bits_and_graph(world):
    q, k, v = (on_gpu(x) for x in heads(np.random.default_rng(3), 2, 800, 800, 4, 2, 128))
    first, sums = attention(world, q, k, v, causal=True)
    out, lse = torch.empty_like(first), torch.empty_like(sums)
    attention(world, q, k, v, causal=True, out=out, lse=lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(world, q, k, v, causal=True, out=out, lse=lse)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, first) and torch.equal(lse, sums)


def test_a_nan_spoils_its_row_only(world):
    q, k, v = heads(np.random.default_rng(4), 1, 200, 200, 1, 1, 128)
    q[0, 0, 77, 3] = np.nan
    o, lse = attention(world, *map(on_gpu, (q, k, v)))
    bad = np.isnan(to_numpy(o).astype(np.float32)).any(-1)[0, 0]
    assert np.flatnonzero(bad).tolist() == [77] and np.flatnonzero(np.isnan(lse.cpu().numpy()[0, 0])).tolist() == [77]
