"""Collectives on GPUs: ranks as threads that share one, or one each; exact results, guards, calls in a row, graphs, two streams."""

import numpy as np
import pytest

import pknumba
from pknumba import CommConfig
from pknumba.errors import HangError
from pknumba.kernels.clocks import clock_offsets
from pknumba.runtime import driver

from ..kernels.collectives import DTYPES, numbers
from ..kernels.definitions import DEFINITIONS
from .arrays import torch
from .test_gemm_all_reduce_gpu import ranks, under_mps

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
POISON = 113
#: Operator -> its arguments for a world of that size.
ARGUMENTS = {
    "all_reduce": lambda n: [dict(op="sum"), dict(op="min"), dict(op="max")],
    "all_gather": lambda n: [dict(axis=0), dict(axis=1), dict(axis=2)],
    "reduce_scatter": lambda n: [dict(axis=0), dict(axis=1, op="max"), dict(axis=2)],
    "all_to_all": lambda n: [dict(scatter_axis=2, gather_axis=1), dict(scatter_axis=1, gather_axis=2), dict(scatter_axis=0, gather_axis=0)],
    "broadcast": lambda n: [dict(root=n - 1)], "reduce": lambda n: [dict(root=n - 1, op="sum")],
    "gather": lambda n: [dict(root=0, axis=1)], "scatter": lambda n: [dict(root=n - 1, axis=2)],
    "send_recv": lambda n: [dict(pairs=tuple((r, (r + 1) % n) for r in range(n)))],
}


def to_device(x):
    """A NumPy array of any of our dtypes as a torch tensor."""
    raw = torch.from_numpy(np.ascontiguousarray(x).reshape(-1).view(f"i{x.itemsize}"))
    return raw.cuda().view(getattr(torch, x.dtype.name)).view(x.shape)


def from_device(x):
    """The other way round."""
    name = str(x.dtype).removeprefix("torch.")
    raw = x.detach().contiguous().reshape(-1).view(torch.int16 if x.element_size() == 2 else torch.int32)
    return raw.cpu().numpy().view(DTYPES[name]).reshape(tuple(x.shape))


def guarded(shape, dtype, shift):
    """(tensor of that shape that begins ``shift`` elements after a 256-byte boundary, the larger one around it)."""
    n = int(np.prod(shape))
    around = torch.full((n + 512,), POISON, dtype=getattr(torch, dtype), device="cuda")
    return around[256 + shift:256 + shift + n].view(shape), around


def check(world, name, shape, arguments, dtype="bfloat16", kinds=("plain", "none"), shift=0, seed=0, config=None):
    """One call; the result must be exact, and nothing beside out written."""
    rng = np.random.default_rng(seed)
    xs = [numbers(rng, shape, dtype) for _ in range(world.size)]
    want = DEFINITIONS[name](xs, world.rank, **arguments)
    x = to_device(xs[world.rank])
    if kinds[0] == "symmetric":
        memory = world.symmetric(shape, dtype)
        torch.from_dlpack(memory).copy_(x)
        x = memory
    out = around = None
    if kinds[1] == "guarded" and want is not None:
        out, around = guarded(want.shape, dtype, shift)
    elif kinds[1] == "symmetric" and want is not None:
        out = world.symmetric(want.shape, dtype)
    got = getattr(pknumba, name)(world, x, out=out, config=config, **arguments)
    world.synchronize()
    assert (got is None) == (want is None)
    if want is not None:
        found = from_device(got if isinstance(got, torch.Tensor) else torch.from_dlpack(got))
        wrong = np.argwhere(found != want)
        assert not len(wrong), f"{name} {shape} {dtype} {arguments} {kinds} {shift}: {len(wrong)} of {want.size} wrong, first at {wrong[0]}"
    if around is not None:
        out.fill_(POISON)
        assert bool((around == POISON).all()), f"{name} {shape}: wrote beside out"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_shapes(name, size):
    """One element, odd, units, several pieces, many blocks; aligned and not; ordinary and symmetric arrays; every dtype."""
    def main(world):
        n, i = size, 0
        for arguments in ARGUMENTS[name](size):
            for shape in ((n, n, n), (n, 2 * n, 8 * n), (5 * n, 3 * n, 7 * n), (4 * n, 16 * n, 64 * n), (n, 257 * n, 500 * n)):
                for kinds in (("plain", "guarded"), ("symmetric", "none"), ("symmetric", "symmetric"), ("plain", "symmetric"))[i % 2::2]:
                    if kinds[1] == "symmetric" and name in ("reduce", "gather", "send_recv"):
                        kinds = kinds[0], "guarded"
                    check(world, name, shape, arguments, list(DTYPES)[i % 4], kinds, shift=(0, 1, 2, 8)[i // 4 % 4], seed=i)
                    i += 1
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("algorithm", ["one-shot", "two-shot", "read-back"])
def test_all_reduce_algorithms(size, algorithm):
    def main(world):
        for i, n in enumerate((1, 2, 3, 7, 8, 31, 255, 256, 257, 4096, 65_535, 300_001)):
            for dtype in DTYPES:
                check(world, "all_reduce", (n,), dict(op=("sum", "min", "max")[i % 3]), dtype, ("plain", "guarded"), shift=i % 5, seed=i,
                      config=CommConfig(algorithm=algorithm))
    ranks(size, main)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_push(size):
    """Ranks write to each other: to results that are symmetric, or to memory of the world."""
    config = CommConfig(algorithm="push")

    def main(world):
        for i, units in enumerate((1, 5, 33, 1000, 40_000)):
            for dtype in DTYPES:
                for name, shape in (("all_reduce", (8 * size * units,)), ("reduce_scatter", (size, units, 3)), ("all_gather", (units, 5)),
                                    ("all_to_all", (size, units, 3 * size))):
                    kinds = ("plain", "symmetric")[i % 2], "symmetric" if name in ("all_gather", "all_to_all") or i % 3 else "guarded"
                    check(world, name, shape, ARGUMENTS[name](size)[0], dtype, kinds, shift=i % 3, seed=i, config=config)
    ranks(size, main)


def test_large():
    """256 MiB for each rank, in the configuration that is chosen for it."""
    def main(world):
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            arguments = ARGUMENTS[name](2)[0]
            check(world, name, (64, 1024, 2048), arguments)
            check(world, name, (64, 1024, 2048), arguments, kinds=("symmetric", "symmetric"))
    ranks(2, main)


def inputs(name, size, calls, shape, dtype="float32"):
    """For each call every rank's x and its result."""
    arguments = ARGUMENTS[name](size)[0]
    data = [[numbers(np.random.default_rng([call, r]), shape, dtype) for r in range(size)] for call in range(calls)]
    return arguments, data, lambda xs, rank: DEFINITIONS[name](xs, rank, **arguments)


def warm(world):
    """Load torch's kernels while nobody spins: loading one may wait for the device."""
    x = torch.ones(8, device="cuda")
    x.copy_(x.clone()), torch.equal(x, x), torch.cuda._sleep(1)
    world.synchronize()
    world.barrier()


@pytest.mark.parametrize("kind", ["plain", "symmetric"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_calls_in_a_row(name, size, kind):
    """100 calls, new values in the same arrays, ranks late in turn, no host synchronisation: every result is exact."""
    shape, calls = (2 * size, 3 * size, 40 * size), 100
    arguments, data, define = inputs(name, size, 10, shape)

    def main(world):
        loaded = [to_device(xs[world.rank]) for xs in data]
        memory = world.symmetric(shape, "float32") if kind == "symmetric" else torch.empty(shape, dtype=torch.float32, device="cuda")
        x = torch.from_dlpack(memory) if kind == "symmetric" else memory
        want = [define(xs, world.rank) for xs in data]
        out = None if want[0] is None else torch.empty(want[0].shape, dtype=torch.float32, device="cuda")
        getattr(pknumba, name)(world, memory, out=out, **arguments)
        warm(world)
        kept = []
        for call in range(calls):
            x.copy_(loaded[call % 10])
            if call % 5 == world.rank:
                torch.cuda._sleep(1_000_000)
            getattr(pknumba, name)(world, memory, out=out, **arguments)
            kept.append(None if out is None else out.clone())
        world.synchronize()
        if out is not None:
            wrong = [call for call in range(calls) if (from_device(kept[call]) != want[call % 10]).any()]
            assert not wrong, f"wrong results of calls {wrong}"
    ranks(size, main)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name, count", [("all_reduce", 3000), ("all_reduce", 3_000_000), ("all_gather", 60_000), ("all_to_all", 60_000)])
def test_graph(name, count, size):
    """Captured once on every rank, replayed 100 times, eager calls mixed in: calls are counted on the device."""
    shape = (2 * size, 2 * size, count // 4 // size ** 2)
    arguments, data, define = inputs(name, size, 5, shape)

    def main(world):
        loaded = [to_device(xs[world.rank]) for xs in data]
        want = [define(xs, world.rank) for xs in data]
        x, out = loaded[0].clone(), torch.empty(want[0].shape, dtype=torch.float32, device="cuda")
        getattr(pknumba, name)(world, x, out=out, **arguments)
        warm(world)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.ExternalStream(world.stream) if world.stream else torch.cuda.Stream()
        for turn in range(world.size):                       # who captures forbids others to wait for the device
            if world.rank == turn:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    getattr(pknumba, name)(world, x, out=out, **arguments)
            world.barrier()
        kept = []
        with torch.cuda.stream(stream):
            for i in range(100):
                x.copy_(loaded[i % 5])
                if i % 10 == 9:
                    getattr(pknumba, name)(world, x, out=out, **arguments)
                else:
                    graph.replay()
                kept.append(out.sum(dtype=torch.float64) if count > 100_000 else out.clone())
        stream.synchronize()
        for i, found in enumerate(kept):
            right = want[i % 5].sum(dtype=np.float64) == float(found) if count > 100_000 else (from_device(found) == want[i % 5]).all()
            assert right, f"replay {i}"
    ranks(size, main)


def test_two_streams_at_once():
    """Each stream has its own counters and memory."""
    def main(world):
        streams = [torch.cuda.Stream() for _ in range(2)]
        data = [[[numbers(np.random.default_rng([s, call, r]), (200_000,), "float32") for r in range(world.size)] for call in range(5)]
                for s in (0, 1)]
        x = [[to_device(xs[world.rank]) for xs in calls] for calls in data]
        out = [torch.empty(200_000, dtype=torch.float32, device="cuda") for _ in streams]
        for s, stream in enumerate(streams):
            pknumba.all_reduce(world, x[s][0], out=out[s], stream=stream)
        warm(world)
        kept = [[], []]
        for call in range(50):
            for s, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    pknumba.all_reduce(world, x[s][call % 5], out=out[s], stream=stream)
                    kept[s].append(out[s].clone())
        torch.cuda.synchronize()
        for s in (0, 1):
            for call, found in enumerate(kept[s]):
                assert (from_device(found) == sum(data[s][call % 5])).all(), (s, call)
    ranks(2, main, num_sms=16)


@pytest.mark.parametrize("algorithm, word", [("one-shot", "arrived"), ("two-shot", "ready")])
def test_a_rank_that_does_not_come(algorithm, word):
    """The device's bounded wait ends, and says who waited for what."""
    def main(world):
        x = torch.ones(1000, device="cuda")
        call = lambda: pknumba.all_reduce(world, x, config=CommConfig(algorithm=algorithm))   # noqa: E731
        call()
        world.synchronize()
        world.barrier()
        if world.rank == 0:
            call()
            world.synchronize()
    with pytest.raises(HangError, match=rf"rank 0 block \d+ communicator .*waits for counter {word}"):
        ranks(2, main, wait_limit_s=1)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_processes_under_mps(size):
    """1,000 calls of each operator, every rank a process of its own, all on one GPU by CUDA IPC."""
    under_mps(size, "many_collectives.py", 280)


@pytest.mark.parametrize("size", [2, 3])
def test_clocks(size):
    """The same on every rank, and the same again; ranks that share a GPU share its clock."""
    def main(world):
        return world.device, [clock_offsets(world) for _ in range(3)]
    devices, found = zip(*ranks(size, main))
    assert all(each == found[0] for each in found)
    spread = np.ptp(found[0], axis=0)
    assert (spread < 20_000).all(), f"nanoseconds that one call differs from another: {spread}"
    for device, ahead in zip(devices, found[0][0]):
        assert device != devices[0] or abs(ahead) < 20_000, found[0]
