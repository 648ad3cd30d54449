"""What layers over ranks are timed against is right: torch with its collectives, on CPUs. Needs torch, which the suite does not."""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pknumba import ring_rows

torch = pytest.importorskip("torch")
dist = torch.distributed
FOLDER = str(Path(__file__).resolve().parents[2] / "benchmarks")


def attention(q, k, v, causal=False, sums=True):
    """(O, log-sum-exp) as torch's CUDA kernels give them."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).float() for x in (k, v))
    scores = q.float() @ k.mT * q.shape[3] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(scores, -1) @ v).bfloat16(), scores.logsumexp(-1, keepdim=True)


def attends(world):
    """{name: error} of every rival of attention."""
    import attention_nccl as A
    n, draw = world.size, torch.Generator().manual_seed(1 + world.rank)
    q, k, v = (torch.randn(2, heads, 96 // n, 16, generator=draw).bfloat16() for heads in (12, 12, 12))
    eager, found = (A.merge, None), {}
    for causal in (False, True):
        for name, rival, zigzag in (("ring", A.Ring(world, q, k, v, causal, attention, eager), causal),
                                    ("exchanged", A.Exchanged(world, q, k, v, causal, attention), False)):
            known = A.truth(world, q, k, v, lambda r, zigzag=zigzag: ring_rows(96, n, r, zigzag), causal)
            rival(), rival()                                            # buffers are used again
            found[f"{name} {causal}"] = A.error(known, rival.out)
    known = A.truth(world, q, k, v, lambda r: ring_rows(96, n, r))
    whole = A.Gathered(world, q, k, v, attention)
    whole()
    one = q[:, :, 0].contiguous()
    dist.broadcast(one, 0)
    parts = A.Parts(world, one, k, v, attention, (A.combine, None))
    parts()
    few = A.truth(world, one.unsqueeze(2), k, v, lambda r: ring_rows(96, n, r))
    return found | {"gathered": A.error(known, whole.out), "parts": A.error(few, parts.out.unsqueeze(2))}


def routes(world):
    """{name: error} of both layers of experts."""
    import moe_nccl as M

    def grouped(rows, matrices, offs):
        edges = [0, *offs.tolist()]
        return torch.cat([rows[a:b] @ matrices[i] for i, (a, b) in enumerate(zip(edges, edges[1:]))])
    torch._grouped_mm, draw = grouped, torch.Generator().manual_seed(1 + world.rank)
    x, weights = torch.randn(24, 32, generator=draw).bfloat16(), torch.rand(24, 3, generator=draw)
    indices = torch.rand(24, 12, generator=draw).topk(3).indices.to(torch.int32)
    w1, w2 = (torch.randn(12 // world.size, *s, generator=draw).div_(6).bfloat16() for s in ((32, 48), (48, 32)))
    known, found = M.truth(world, torch.arange(24), x, indices, weights, w1, w2), {}
    for early in (False, True):
        rival = M.Experts(world, x, indices, weights, w1, w2, 12, early)
        rival(), rival()
        found[f"counts known {early}"] = ((rival.out.float() - known).norm() / known.norm()).item()
    return found


def rank(number, n, path, what, queue):
    """One of n processes."""
    sys.path.insert(0, FOLDER)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=number, world_size=n)
    queue.put(what(SimpleNamespace(size=n, rank=number)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("what, kinds, limit", [(attends, 6, 6e-3), (routes, 2, 1e-2)])
def test_rivals_are_right(tmp_path, what, kinds, limit, n):
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(partial(rank), (n, tmp_path / "met", what, queue), n)
    found = [queue.get() for _ in range(n)]
    assert all(len(errors) == kinds and max(errors.values()) < limit for errors in found), found


def test_one_that_fails_is_named(monkeypatch):
    """A rival that raises, is wrong, or is no number does not run, on any rank, and the reason is told in one line."""
    monkeypatch.syspath_prepend(FOLDER)
    import rivals
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    world = SimpleNamespace(size=1, rank=0, allgather=lambda value: [value])

    def made(out):
        rival = lambda: None                                            # noqa: E731
        rival.out = out
        return rival

    def broken():
        raise ValueError("first\nsecond")
    check = dict(error=lambda out: out, limit=0.1)
    assert rivals.trial(world, "a", broken, **check) == (None, "ValueError: first")
    assert rivals.trial(world, "b", lambda: made(0.5), **check) == (None, "ValueError: wrong, relative error 5.0e-01")
    assert "wrong, relative error nan" in rivals.trial(world, "c", lambda: made(float("nan")), **check)[1]
    rival, why = rivals.trial(world, "d", lambda: made(0.05), **check)
    assert rival and why is None
    monkeypatch.setattr(rivals, "in_graph", lambda call, calls: broken)
    assert not rivals.capturable(world, "e", rival)
    monkeypatch.setattr(rivals, "in_graph", lambda call, calls: call)
    assert rivals.capturable(world, "e", rival)
    elsewhere = SimpleNamespace(size=2, rank=1, allgather=lambda value: ["rank 0 is out of memory", value])
    assert rivals.trial(elsewhere, "f", lambda: made(0.05), **check) == (None, "rank 0 is out of memory")


def test_every_shape_of_the_goal_is_in_the_sweep(monkeypatch):
    """N x N x N/2 of each rank for N = 2048 to 32768."""
    monkeypatch.syspath_prepend(FOLDER)
    import multigpu
    shapes = {shape for part in ("fused", "large") for shape in multigpu.PARTS[part][1].keywords["shapes"]}
    assert shapes >= {(n, n, n // 2) for n in (2048, 4096, 8192, 16384, 32768)}
