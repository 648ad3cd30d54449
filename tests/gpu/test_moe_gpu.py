"""Products of groups of rows on a GPU: every kind of group, both layouts, guards around results, graphs whose offsets change."""

import numpy as np
import pytest

from pknumba import GroupedGemmConfig, MoeConfig, World, config, grouped_gemm, moe_dispatch_gemm, moe_layer
from pknumba.config.moe import _TALL
from pknumba.runtime import driver

from ..kernels.experts import Problem, routed
from ..kernels.products import DTYPES, matrix, reference
from .arrays import assert_untouched, guarded, on_device, signs, to_numpy, torch
from .test_gemm_all_reduce_gpu import ranks, under_mps, warm

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SHIPPED = [*(fields for fields, *_ in config._GEMMS), _TALL]
#: (rows of each group, rows of no group, n, k).
CASES = [((130, 0, 3, 200, 64), 5, 136, 72), ((256, 256), 0, 512, 128), ((1,), 0, 1, 1), ((0, 0, 700), 0, 264, 200), ((7, 9), 3, 20, 0),
         ((129, 1, 127, 0, 65, 63), 7, 392, 100), ((0, 0), 9, 8, 8)]


@pytest.fixture(scope="module")
def world():
    """One rank."""
    with World.local(1, executor="gpu", wait_limit_s=5) as found:
        yield found


def check(world, seed, case, dtype, columns, **options):
    """One call; every group against float64; rows of no group and what lies around the result are NaN still."""
    (groups, more, n, k), rng = case, np.random.default_rng(seed)
    t, ends = sum(groups) + more, np.cumsum(groups).astype(np.int32)
    a, b = matrix(rng, (t, k), dtype), matrix(rng, (len(groups), k, n), dtype)
    right = on_device(np.ascontiguousarray(b.transpose(0, 2, 1))).transpose(1, 2) if columns else on_device(b)
    out, around = guarded((t, n), dtype, 3 if seed % 2 else 8, 1 if seed % 2 else 8)
    grouped_gemm(world, on_device(a), right, torch.from_numpy(ends).cuda(), out=out, **options)
    found, start = to_numpy(out).astype(np.float64), 0
    for e, end in enumerate(ends):
        value, bound = reference([(a[start:end], b[e])], dtype)
        wrong = ~(np.abs(found[start:end] - value) <= bound)
        assert not wrong.any(), f"{case} {dtype} group {e}: {wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"
        start = end
    assert np.isnan(found[start:]).all()
    assert_untouched(out, around)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_groups(world, dtype, columns):
    for i, case in enumerate(CASES):
        for seed in (2 * i, 2 * i + 1):
            check(world, seed, case, dtype, columns)


@pytest.mark.parametrize("fields", SHIPPED, ids=lambda f: "-".join(map(str, f.values())))
def test_shipped_configurations(world, fields):
    for i, case in enumerate(CASES[:6:5]):
        check(world, i, case, "bfloat16", i % 2 == 0, config=GroupedGemmConfig(**fields))


def test_rivals(world):
    """Two kernels are launched, and the groups say which of them works: it may change from call to call."""
    a, b = torch.randn(2048, 256, device="cuda").bfloat16(), torch.randn(8, 256, 3072, device="cuda").bfloat16()
    for groups in ((256,) * 8, (132,) * 4 + (1024,) + (132,) * 3, (0,) * 7 + (2048,), (192,) * 8):
        ends, out = torch.tensor(groups).cumsum(0).to(torch.int32), torch.full((2048, 3072), float("nan"), device="cuda").bfloat16()
        grouped_gemm(world, a, b, ends.cuda(), out=out)
        truth, start = torch.full_like(out, float("nan")), 0
        for e, end in enumerate(ends.tolist()):
            truth[start:end] = a[start:end] @ b[e]
            start = end
        assert torch.allclose(torch.nan_to_num(out, 999), torch.nan_to_num(truth, 999), rtol=2e-2, atol=0.1), groups


def test_graph_with_changing_groups(world):
    """Captured once, replayed with other offsets: the host reads none. Offsets that fall or lie too high count as the nearest that fit."""
    t, groups, n, k = 600, 6, 256, 64
    a, b = signs(t, k), signs(groups, n, k, seed=1).transpose(1, 2)
    ends, out = torch.zeros(groups, dtype=torch.int32, device="cuda"), torch.empty(t, n, dtype=torch.bfloat16, device="cuda")
    run = lambda: grouped_gemm(world, a, b, ends, out=out)                      # noqa: E731
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for given, meant in (([100] * 6, [100] * 6), ([0, 0, 600, 600, 600, 600],) * 2, ([1, 2, 3, 130, 400, 599],) * 2,
                         ([50, 20, -9, 700, 3, 5], [50, 50, 50, 600, 600, 600])):
        ends.copy_(torch.tensor(given, dtype=torch.int32)), out.fill_(float("nan"))
        graph.replay()
        truth, start = torch.full((t, n), float("nan"), device="cuda"), 0
        for e, end in enumerate(meant):
            truth[start:end] = a[start:end].float() @ b[e].float()
            start = end
        assert torch.equal(torch.nan_to_num(out.float(), 999.0), torch.nan_to_num(truth, 999.0)), given


def test_same_bits_each_time(world):
    """Also with other numbers of rows before a group."""
    a, b = torch.randn(512, 512, device="cuda").bfloat16(), torch.randn(3, 512, 384, device="cuda").bfloat16()
    ends = torch.tensor([200, 200, 500], dtype=torch.int32, device="cuda")
    found = [grouped_gemm(world, a, b, ends)[:500].clone() for _ in range(20)]
    torch.cuda.synchronize()
    assert all(torch.equal(x, found[0]) for x in found)


@pytest.mark.parametrize("fields", SHIPPED, ids=lambda f: "-".join(map(str, f.values())))
def test_rows_where_they_are(world, fields):
    """A dispatch of one rank takes tokens' rows from an array with NaN around them: whole depths, depths that a stage, 16 bytes or two
    elements do not divide, experts without rows, more rows than there is room for; exact, and the same bits each time."""
    shapes = (70, 2, 3, 128, 136), (33, 8, 5, 200, 72), (300, 1, 2, 256, 264), (9, 3, 4, 13, 16), (64, 4, 9, 65, 8)
    for seed, (tokens, top_k, experts, h, n) in enumerate(shapes):
        problem = Problem(seed, 1, tokens, top_k, experts, h, n, 8, ("bfloat16", "float16")[seed % 2], exact=True)
        x, indices, _, w1, _ = problem.mine(0)
        wide = torch.full((tokens, h + 16), float("nan"), device="cuda", dtype=on_device(x).dtype)
        wide[:, 8:8 + h] = on_device(x)
        given, capacity = (wide[:, 8:8 + h], on_any(indices), on_device(w1)), tokens * top_k if seed else tokens
        found = []
        for _ in range(3):
            out = torch.full((capacity, n), float("nan"), device="cuda", dtype=wide.dtype)
            _, routes = moe_dispatch_gemm(world, *given, experts=experts, capacity=capacity, out=out, config=MoeConfig(**fields))
            found.append(to_numpy(out).astype(np.float32))
        rows, ends, _ = routed(problem.x, problem.indices, experts, 0)
        ends = np.minimum(ends, capacity)
        for e, (start, end) in enumerate(zip((0, *ends), ends)):
            wanted = (rows[start:end].astype(np.float32) @ w1[e].astype(np.float32)).astype(x.dtype).astype(np.float32)
            assert all(np.array_equal(y[start:end], wanted) for y in found), f"{fields} case {seed} expert {e}"
        assert all(np.isnan(y[ends[-1]:]).all() for y in found)


def test_sums_of_many_slots(world):
    """Tokens with one slot to more than a warp's lanes; some are dropped, and their weights are no numbers."""
    for top_k, n in ((1, 8), (5, 1032), (33, 264), (70, 2056)):
        problem = Problem(top_k, 1, 40, top_k, 6, 16, 24, n, exact=True)
        x, indices, weights, w1, w2 = problem.mine(0)
        weights[(indices < 0) | (indices >= 6)] = np.nan
        out = moe_layer(world, *(on_any(y) for y in (x, indices, weights, w1, w2)), activation="relu")
        problem.check(0, to_numpy(out), "relu")


# ---- over ranks

def layers(world, problems, calls, **options):
    """The layer with new values in the same arrays, no host synchronisation between; results are checked afterwards."""
    mine = [on_any(x) for x in problems[0].mine(world.rank)[:3]]
    w1, w2 = (on_any(w) for w in problems[0].mine(world.rank)[3:])
    inputs = [[on_any(x) for x in p.mine(world.rank)[:3]] for p in problems]
    moe_layer(world, *mine, w1, w2, activation="relu", experts=problems[0].experts, **options)
    warm(world)
    kept, late = [], np.random.default_rng(7).integers(0, world.size, calls)
    for number in range(calls):
        for array, values in zip(mine, inputs[number % len(problems)]):
            array.copy_(values)
        if late[number] == world.rank:
            torch.cuda._sleep(1_000_000)
        kept.append(moe_layer(world, *mine, w1, w2, activation="relu", experts=problems[0].experts, **options))
    world.synchronize()
    for number, out in enumerate(kept):
        problems[number % len(problems)].check(world.rank, to_numpy(out), "relu", f"call {number}")


def on_any(x):
    """A NumPy array of any dtype on the device."""
    return on_device(x) if x.dtype.itemsize == 2 else torch.from_numpy(x).cuda()


def same_weights(problems):
    """The problems, with the first one's experts."""
    for p in problems[1:]:
        p.w1, p.w2 = problems[0].w1, problems[0].w2
    return problems


@pytest.mark.parametrize("size", [1, 2, 3])
def test_layer(size):
    """Experts fewer than ranks, more, not a multiple of them; 20 calls in a row, ranks late in turn."""
    def main(world):
        for shape in ((130, 2, 5, 72, 136, 264), (64, 1, 2, 64, 64, 64), (100, 3, 2 * size + 1, 200, 40, 72)):
            layers(world, same_weights([Problem(i, size, *shape, exact=True) for i in range(3)]), 20)

    ranks(size, main)


@pytest.mark.parametrize("activation, dtype, columns", [("silu", "bfloat16", True), ("gelu", "float16", False)])
def test_activations(activation, dtype, columns):
    problem = Problem(3, 2, 96, 2, 4, 136, 104, 72, dtype)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        w1, w2 = (on_any(np.ascontiguousarray(w.transpose(0, 2, 1))).transpose(1, 2) if columns else on_any(w) for w in (w1, w2))
        out = moe_layer(world, on_any(x), on_any(indices), on_any(weights), w1, w2, activation=activation)
        world.synchronize()
        problem.check(world.rank, to_numpy(out), activation)

    ranks(2, main)


def test_graph_of_the_layer():
    """Captured once; the router's choice and everything else changes from replay to replay."""
    problems = same_weights([Problem(i, 1, 150, 2, 6, 64, 128, 64, exact=True) for i in range(4)])

    def main(world):
        mine = [on_any(x) for x in problems[0].mine(0)]
        inputs = [[on_any(x) for x in p.mine(0)[:3]] for p in problems]
        out = torch.empty(150, 64, dtype=torch.bfloat16, device="cuda")
        run = lambda: moe_layer(world, *mine, activation="relu", out=out)        # noqa: E731
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for number in range(12):
            for array, values in zip(mine, inputs[number % 4]):
                array.copy_(values)
            out.fill_(float("nan"))
            graph.replay()
            problems[number % 4].check(0, to_numpy(out), "relu", f"replay {number}")

    ranks(1, main)


@pytest.mark.parametrize("size", [2, 4])
def test_processes_under_mps(size):
    """500 calls of every rank in a process of its own, all on one GPU by CUDA IPC."""
    under_mps(size, "many_layers.py", 120)
