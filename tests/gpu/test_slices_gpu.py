"""gemm with slices on a GPU: edges, the same bits each time, streams at once, graphs."""

import pytest

from pknumba import World, gemm
from pknumba.config import GemmConfig
from pknumba.runtime import driver

from .arrays import torch
from .test_gemm_gpu import check

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SLICES = [dict(tile_n=128, stages=6, slices=8), dict(tile_m=64, tile_n=128, stages=8, consumers=1, slices=32, b_transposed=False),
          dict(tile_n=256, stages=4, c_stages=1, slices=4, dtype="float16"), dict(tile_m=64, tile_n=64, stages=12, consumers=1, slices=2),
          dict(tile_m=64, tile_n=128, stages=8, c_stages=1, consumers=1, slices=16, direct=True, ahead=8),
          dict(tile_n=128, stages=6, slices=8, cluster=2, direct=True, ahead=6),
          dict(tile_n=256, stages=4, c_stages=1, slices=16, cluster=2, direct=True)]


@pytest.fixture
def world():
    with World.local(1, executor="gpu", wait_limit_s=10) as world:
        yield world


@pytest.mark.parametrize("fields", SLICES, ids=lambda f: f"{f['tile_n']}-{f['slices']}-{f.get('cluster', 1)}")
def test_slices(world, fields):
    """One tile and many, less depth than slices, edges; more tiles than fit at once; the same bits each time."""
    cfg = GemmConfig(**fields)
    for shape in ((512, 512, 4096), (300, 520, 1000), (1, 1, 1), (129, 257, 72), (2000, 1800, 520)):
        check(world, shape, cfg.dtype, cfg.b_transposed, config=cfg)
    a, b = (torch.randn(256, 8192, device="cuda").to(getattr(torch, cfg.dtype)) for _ in range(2))
    first = gemm(world, a, b.T, config=cfg)
    assert all(torch.equal(first, gemm(world, a, b.T, config=cfg)) for _ in range(200))


def test_slices_on_two_streams_and_in_graphs(world):
    """Calls of all shapes on two streams at once, none told of its stream: each stream has its own memory, and a graph that of graphs."""
    cases = []
    for fields in SLICES:
        cfg = GemmConfig(**fields)
        for m, n, k in ((512, 512, 4096), (300, 520, 1000), (130, 72, 8000)):     # rows that the copy engine reads as they are
            a, b = (torch.randn(x, k, device="cuda").to(getattr(torch, cfg.dtype)) for x in (m, n))
            cases.append((a, b.T, cfg, gemm(world, a, b.T, config=cfg)))
    streams, made = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                made += [(gemm(world, a, b, config=cfg), truth) for a, b, cfg, truth in cases]
        torch.cuda.synchronize()
        assert all(torch.equal(x, truth) for x, truth in made)
        made.clear()
    graph, out = torch.cuda.CUDAGraph(), [torch.empty_like(truth) for *_, truth in cases]
    for (a, b, cfg, _), x in zip(cases, out):
        gemm(world, a, b, out=x, config=cfg)                # a first call to a result may allocate, which a capture cannot
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for (a, b, cfg, _), x in zip(cases, out):
            gemm(world, a, b, out=x, config=cfg)
    for _ in range(20):
        for x in out:
            x.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(x, truth) for x, (*_, truth) in zip(out, cases))
