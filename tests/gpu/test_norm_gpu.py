"""all_reduce_rmsnorm on GPUs: ranks as threads that share one, or one each; exact sums, norms within their bound, calls in a row,
graphs."""

import numpy as np
import pytest

from pknumba import NormConfig, all_reduce_rmsnorm
from pknumba.errors import HangError
from pknumba.runtime import driver

from ..kernels.collectives import DTYPES, numbers
from ..kernels.test_all_reduce_rmsnorm import FLOATS, assert_norm, definition
from .arrays import torch
from .test_collectives_gpu import from_device, guarded, to_device, warm
from .test_gemm_all_reduce_gpu import ranks

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
ALGORITHMS = ("one-shot", "two-shot")


def inputs(world, shape, dtype, seed):
    """(x of every rank, residual, weight)."""
    rng = np.random.default_rng(seed)
    xs = [numbers(rng, shape, dtype) for _ in range(world.size)]
    return xs, numbers(rng, shape, dtype), rng.integers(1, 4, shape[-1:]).astype(DTYPES[dtype])


def check(world, shape, dtype, seed=0, kinds="plain", **options):
    """One call: h exactly, its norm within the bound of its roundings, and nothing beside the results written."""
    xs, residual, weight = inputs(world, shape, dtype, seed)
    x, (h, h_around), (y, y_around) = to_device(xs[world.rank]), guarded(shape, dtype, seed % 3), guarded(shape, dtype, seed % 2)
    h.copy_(to_device(residual))
    given, result = h, h
    if kinds == "symmetric":
        memory, result = world.symmetric(shape, dtype), world.symmetric(shape, dtype)
        torch.from_dlpack(memory).copy_(x), torch.from_dlpack(result).copy_(h)
        x, given = memory, result
    got, total = all_reduce_rmsnorm(world, x, given, to_device(weight), eps=1e-5, out=y, residual_out=result, **options)
    world.synchronize()
    want, norm = definition(xs, residual, weight, 1e-5)
    found = from_device(total if isinstance(total, torch.Tensor) else torch.from_dlpack(result))
    assert np.array_equal(found, want), f"{shape} {dtype}: {np.argwhere(found != want)[0]} is wrong"
    assert_norm(from_device(got), norm, shape[-1], f"{shape} {dtype}")
    for view, around in ((h, h_around), (y, y_around)):
        view.fill_(113)
        assert bool((around == 113).all()), "wrote beside a result"


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, None])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shapes(size, algorithm):
    """One element, odd rows, decode (1 to 64 rows of 8192), more rows than SMs; in place; ordinary and symmetric arrays."""
    def main(world):
        for i, shape in enumerate(((1,), (3, 5), (1, 8192), (64, 8192), (2, 3, 1001), (300, 264), (7, 20_000))):
            config = algorithm and NormConfig(algorithm=algorithm)
            check(world, shape, FLOATS[i % 3], i, ("plain", "symmetric")[i % 2], config=config)
    ranks(size, main)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 4])
def test_calls_in_a_row_and_graph(size, algorithm):
    """100 replays of a graph with eager calls mixed in, new values in the same arrays, ranks late in turn: every sum is exact."""
    shape, config = (5, 1024), NormConfig(algorithm=algorithm)

    def main(world):
        data = [inputs(world, shape, "float32", i) for i in range(5)]
        loaded = [tuple(map(to_device, (xs[world.rank], residual, weight))) for xs, residual, weight in data]
        x, residual, weight = (t.clone() for t in loaded[0])
        y, h, kept = torch.empty_like(x), torch.empty_like(x), torch.empty((200, *shape), device="cuda")
        run = lambda: all_reduce_rmsnorm(world, x, residual, weight, eps=1e-5, out=y, residual_out=h, config=config)   # noqa: E731
        run()
        warm(world)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.ExternalStream(world.stream) if world.stream else torch.cuda.Stream()
        for turn in range(world.size):
            if world.rank == turn:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    run()
            world.barrier()
        with torch.cuda.stream(stream):
            for i in range(100):
                for target, source in zip((x, residual, weight), loaded[i % 5]):
                    target.copy_(source)
                if i % 7 == world.rank:
                    torch.cuda._sleep(500_000)
                run() if i % 10 == 9 else graph.replay()
                kept[2 * i].copy_(h), kept[2 * i + 1].copy_(y)
        stream.synchronize()
        for i in range(100):
            want, norm = definition(*data[i % 5], 1e-5)
            assert np.array_equal(from_device(kept[2 * i]), want), f"call {i}"
            assert_norm(from_device(kept[2 * i + 1]), norm, shape[-1], f"call {i}")
    ranks(size, main)


@pytest.mark.parametrize("algorithm, word", [("one-shot", "arrived"), ("two-shot", "ready")])
def test_a_rank_that_does_not_come(algorithm, word):
    """The device's bounded wait ends, and says who waited for what."""
    def main(world):
        x, weight = torch.ones((2, 1000), device="cuda"), torch.ones(1000, device="cuda")
        call = lambda: all_reduce_rmsnorm(world, x, x.clone(), weight, config=NormConfig(algorithm=algorithm))   # noqa: E731
        call()
        world.synchronize()
        world.barrier()
        if world.rank == 0:
            call()
            world.synchronize()
    with pytest.raises(HangError, match=rf"rank 0 block \d+ communicator .*waits for counter {word}"):
        ranks(2, main, wait_limit_s=1)
