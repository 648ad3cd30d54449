"""Products of groups of rows on a GPU: every kind of group, both layouts, guards around results, graphs whose offsets change."""

import numpy as np
import pytest

from pknumba import GroupedGemmConfig, World, config, grouped_gemm
from pknumba.runtime import driver

from ..kernels.products import DTYPES, matrix, reference
from .arrays import assert_untouched, guarded, on_device, signs, to_numpy, torch

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SHIPPED = [fields for fields, *_ in config._GEMMS]
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
