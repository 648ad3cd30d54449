"""Operators that spread a product over ranks, on GPUs: ranks as threads that share one, or one each; processes under MPS."""

from functools import partial

import numpy as np
import pytest

from pknumba import World, all_gather_gemm, config, gemm_all_reduce, gemm_all_to_all, gemm_reduce_scatter
from pknumba.config import AllGatherGemmConfig, GemmAllReduceConfig, GemmAllToAllConfig, GemmReduceScatterConfig
from pknumba.errors import HangError
from pknumba.runtime import driver

from ..kernels.products import DTYPES, matrix, reference
from .arrays import assert_untouched, guarded, on_device, signs, to_numpy, torch
from .test_gemm_all_reduce_gpu import ranks, under_mps, warm

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SHIPPED = [fields for fields, *_ in config._GEMMS]
FAMILIES = {"scatter": GemmReduceScatterConfig, "gather": AllGatherGemmConfig, "exchange": GemmAllToAllConfig,
            "columns": GemmAllToAllConfig}
ALL = pytest.mark.parametrize("kind", [*FAMILIES, "add", "inside"])
BOTH = pytest.mark.parametrize("kind", FAMILIES)
#: Kinds of gemm_all_to_all -> (scatter_axis, gather_axis).
AXES = {"exchange": (0, 1), "columns": (1, 0)}


def problem(world, kind, seed, shape, dtype):
    """(A, B of this rank, (float64 value, bound) of its result) as NumPy arrays."""
    (m, n, k), rng = shape, np.random.default_rng(seed)
    pairs = [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]
    a, b = pairs[world.rank]
    if kind == "gather":
        return np.array_split(pairs[0][0], world.size)[world.rank], b, reference([(pairs[0][0], b)], dtype)
    if kind in AXES:
        scatter, gather = AXES[kind]
        each = [[np.array_split(x, world.size, scatter)[world.rank] for x in reference([pair], dtype)] for pair in pairs]
        return a, b, [np.concatenate(x, gather) for x in zip(*each)]
    return a, b, [np.array_split(x, world.size)[world.rank] for x in reference(pairs, dtype)]


def call(world, kind, a, b, m, **options):
    """The operator."""
    if kind == "gather":
        return all_gather_gemm(world, a, b, rows=m, **options)
    if kind in AXES:
        return gemm_all_to_all(world, a, b, scatter_axis=AXES[kind][0], gather_axis=AXES[kind][1], **options)
    if kind == "inside":
        return gemm_all_reduce(world, a, b, config=GemmAllReduceConfig(intra_sm=True), **options)
    if kind == "add":
        options["config"] = GemmReduceScatterConfig(adds=True, comm_sms=4)
    return gemm_reduce_scatter(world, a, b, **options)


def check(world, kind, shape, dtype="bfloat16", transposed=True, guard=True, seed=0, **options):
    """One call; its result against float64, and what lies around it."""
    a, b, (value, bound) = problem(world, kind, seed, shape, dtype)
    right = on_device(np.ascontiguousarray(b.T)).T if transposed else on_device(b)
    out, around = guarded(value.shape, dtype, 3 if seed % 2 else 8, 1 if seed % 2 else 8) if guard else (None, None)
    c = call(world, kind, on_device(a), right, shape[0], out=out, **options)
    world.synchronize()
    found = to_numpy(c)
    assert found.shape == value.shape and found.dtype == DTYPES[dtype]
    wrong = ~(np.abs(found.astype(np.float64) - value) <= bound)
    assert not wrong.any(), f"{kind} {shape} {dtype}: {wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"
    if guard:
        assert_untouched(out, around)


@BOTH
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_size(size, kind):
    def main(world):
        shapes = [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1), (17, 131, 9), (300, 520, 200), (1000, 700, 136), (256 * size, 256, 128)]
        for i, shape in enumerate(shapes):
            for dtype in DTYPES:
                check(world, kind, shape, dtype, i % 2 == 0, i // 2 % 2 == 0, seed=i)

    ranks(size, main)


@BOTH
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("fields", SHIPPED, ids=lambda f: "-".join(map(str, f.values())))
def test_shipped_configurations(fields, transposed, kind):
    def main(world):
        for i, shape in enumerate(((1024, 768, 256), (300, 520, 72), (129, 257, 8))):
            more = {} if kind in AXES else {"intra_sm": i != 1, "comm_sms": 4}
            check(world, kind, shape, "bfloat16", transposed, seed=i, config=FAMILIES[kind](**{**fields, **more}).fitted())

    ranks(2, main)


def exact(world, kind, seed, m, n, k):
    """(A, B, result) of values for which every sum is exact, as torch tensors."""
    pairs = [(signs(m, k, seed=1000 * seed + r), signs(k, n, seed=1000 * seed + r + 500)) for r in range(world.size)]
    a, b = pairs[world.rank]
    if kind == "gather":
        return torch.tensor_split(pairs[0][0], world.size)[world.rank], b, (pairs[0][0].float() @ b.float()).bfloat16()
    if kind in AXES:
        scatter, gather = AXES[kind]
        products = [(x.float() @ y.float()).bfloat16() for x, y in pairs]
        return a, b, torch.cat([torch.tensor_split(c, world.size, scatter)[world.rank] for c in products], gather)
    total = sum(x.float() @ y.float() for x, y in pairs).bfloat16()
    return a, b, total if kind == "inside" else torch.tensor_split(total, world.size)[world.rank]


@ALL
@pytest.mark.parametrize("m", [512, 499])
@pytest.mark.parametrize("size", [2, 4])
def test_calls_in_a_row(size, m, kind):
    """100 calls, new values in the same arrays, ranks late in turn, no host synchronisation: every result is exact."""
    n, k, calls = 392, 64, 100

    def main(world):
        problems = [exact(world, kind, number, m, n, k) for number in range(10)]
        a, b, c = (x.clone() for x in problems[0])
        late, kept = np.random.default_rng(7).integers(0, world.size, calls), c.new_empty((calls, *c.shape))
        call(world, kind, a, b, m, out=c)
        warm(world)
        for number in range(calls):                          # no allocation in here: it may wait for kernels that wait for this rank
            x, y, _ = problems[number % 10]
            a.copy_(x), b.copy_(y), c.fill_(float("nan"))
            if late[number] == world.rank:
                torch.cuda._sleep(2_000_000)
            call(world, kind, a, b, m, out=c)
            kept[number].copy_(c)
        world.synchronize()
        wrong = [number for number in range(calls) if not torch.equal(kept[number], problems[number % 10][2])]
        assert not wrong, f"wrong results of calls {wrong}"

    ranks(size, main)


@ALL
@pytest.mark.parametrize("size", [1, 2])
def test_graph(size, kind):
    """Captured once on every rank, replayed 100 times, then an eager call: epochs are counted on the device."""
    m, n, k = 260, 200, 64

    def main(world):
        problems = [exact(world, kind, i, m, n, k) for i in range(5)]
        a, b, out = (x.clone() for x in problems[0])
        run = partial(call, world, kind, a, b, m, out=out)
        run()
        warm(world)
        graph, kept = torch.cuda.CUDAGraph(), []
        stream = torch.cuda.ExternalStream(world.stream) if world.stream else torch.cuda.Stream()
        for turn in range(world.size):                       # who captures forbids others to wait for the device
            if world.rank == turn:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    run()
            world.barrier()
        with torch.cuda.stream(stream):
            for i in range(101):
                a.copy_(problems[i % 5][0]), b.copy_(problems[i % 5][1])
                graph.replay() if i < 100 else run()
                kept.append(out.clone())
        stream.synchronize()
        wrong = [i for i in range(101) if not torch.equal(kept[i], problems[i % 5][2])]
        assert not wrong, f"wrong results of replays {wrong}"

    ranks(size, main)


@pytest.mark.parametrize("kind", ["scatter", "gather", "exchange", "reduce"])
def test_two_streams_at_once(kind):
    """Each stream has its own counters, and its own memory for results that are copied out."""
    m, n, k, calls = 260, 200, 64, 40

    def main(world):
        streams = [torch.cuda.Stream() for _ in range(2)]
        problems = [[exact(world, "inside" if kind == "reduce" else kind, 10 * s + i, m, n, k) for i in range(5)] for s in (0, 1)]
        a, b, out = ([x.clone() for x in column] for column in zip(*(p[0] for p in problems)))
        kept = [out[0].new_empty((calls, *out[0].shape)) for _ in streams]

        def run(s):
            options = dict(out=out[s], stream=streams[s])
            return gemm_all_reduce(world, a[s], b[s], **options) if kind == "reduce" else call(world, kind, a[s], b[s], m, **options)
        for s in (0, 1):
            run(s)
        warm(world)
        for number in range(calls):
            for s, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    a[s].copy_(problems[s][number % 5][0]), b[s].copy_(problems[s][number % 5][1])
                    run(s)
                    kept[s][number].copy_(out[s])
        torch.cuda.synchronize()
        wrong = [(s, i) for s in (0, 1) for i in range(calls) if not torch.equal(kept[s][i], problems[s][i % 5][2])]
        assert not wrong, f"wrong results of (stream, call) {wrong}"

    ranks(2, main, num_sms=16)


@BOTH
def test_a_rank_that_does_not_come(kind):
    """The device's bounded wait ends, and says who waited for what; a new world works."""
    shape = (300, 200, 64)

    def main(world):
        check(world, kind, shape, guard=False)               # agreed on, compiled, loaded
        if world.rank == 0:
            a, b, _ = (on_device(x) if isinstance(x, np.ndarray) else x for x in problem(world, kind, 0, shape, "bfloat16"))
            call(world, kind, a, b.T.contiguous().T, shape[0])
            world.synchronize()

    with pytest.raises(HangError, match="rank 0 block .* waits for counter"):
        ranks(2, main, wait_limit_s=1)
    ranks(2, lambda world: check(world, kind, shape))


@pytest.mark.parametrize("size", [2, 4, 8])
def test_processes_under_mps(size):
    """1,000 calls of every rank in a process of its own, all on one GPU by CUDA IPC."""
    under_mps(size, "many_fused.py", 280)


def test_one_rank_runs_gemm():
    """Nothing to communicate: no symmetric memory is made, and results have the bits of gemm."""
    from pknumba import gemm, gemm_all_reduce
    with World.local(1, executor="gpu") as world:
        a, b = torch.randn(300, 200, device="cuda").bfloat16(), torch.randn(200, 136, device="cuda").bfloat16()
        blocks = len(world._blocks)
        expected = gemm(world, a, b)
        for operator in (gemm_all_reduce, gemm_reduce_scatter, all_gather_gemm):
            assert torch.equal(operator(world, a, b), expected)
        assert len(world._blocks) == blocks
