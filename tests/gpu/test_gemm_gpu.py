"""gemm on a GPU: everything that ships, edges, libraries, streams, graphs. Results against float64, with guards around them."""

import itertools
import time

import numpy as np
import pytest

from pknumba import World, config, gemm
from pknumba.config import GemmConfig
from pknumba.errors import ConfigError, LayoutError, WorldError
from pknumba.runtime import driver

from ..kernels.products import DTYPES, assert_close, matrix
from .arrays import LIBRARIES, assert_untouched, guarded, on_device, signs, to_numpy, torch

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SHIPPED = [fields for fields, *_ in config._GEMMS]
DIRECT = [dict(tile_n=256), dict(SHIPPED[0], stages=5, c_stages=1), dict(tile_m=192, tile_n=96, stages=5, consumers=3, ahead=2),
          dict(tile_n=176, stages=4), dict(tile_m=64, tile_n=128, stages=8, c_stages=1, consumers=1, ahead=8),
          dict(tile_n=128, cluster=2, ahead=4), dict(tile_n=64, stages=8, c_stages=1)]


@pytest.fixture
def world():
    with World.local(1, executor="gpu", wait_limit_s=10) as world:
        yield world


def operands(rng, m, n, k, dtype):
    return matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)


def check(world, shape, dtype, transposed, left=8, pitch_of=8, **options):
    """One product into a guarded result."""
    rng = np.random.default_rng(hash(shape) % 2 ** 32)
    a, b = operands(rng, *shape, dtype)
    out, around = guarded(shape[:2], dtype, left, pitch_of)
    right = on_device(np.ascontiguousarray(b.T)).T if transposed else on_device(b)
    assert gemm(world, on_device(a), right, out=out, **options) is out
    world.synchronize()
    assert_close(to_numpy(out), [(a, b)], dtype, (shape, dtype, transposed))
    assert_untouched(out, around)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("fields", SHIPPED, ids=lambda f: "-".join(map(str, f.values())))
def test_shipped_configurations(world, fields, transposed):
    """Whole tiles, tails at every edge, one tile, many tiles a block, a K tail."""
    for shape in ((512, 768, 256), (300, 520, 200), (1, 1, 1), (2000, 1800, 72), (129, 257, 8)):
        check(world, shape, "bfloat16", transposed, config=GemmConfig(**fields))


@pytest.mark.parametrize("transposed, dtype", [(True, "bfloat16"), (False, "float16")])
@pytest.mark.parametrize("fields", [SHIPPED[0], SHIPPED[1], SHIPPED[5]], ids=lambda f: "-".join(map(str, f.values())))
def test_clusters(world, fields, transposed, dtype):
    """Pairs of tile rows: whole, without a mate, a single tile, rows that straddle lines; many pairs a cluster."""
    for shape in ((512, 768, 256), (300, 520, 200), (1, 1, 1), (2000, 1800, 72), (129, 257, 8), (3000, 2100, 136)):
        check(world, shape, dtype, transposed, config=GemmConfig(cluster=2, **fields))


@pytest.mark.parametrize("transposed, dtype", [(True, "bfloat16"), (False, "float16")])
@pytest.mark.parametrize("fields", DIRECT, ids=lambda f: "-".join(map(str, f.values())))
def test_consumers_that_store(world, fields, transposed, dtype):
    """Alone, together, in turns, in clusters, with operands that are asked for early: every edge."""
    for shape in ((512, 768, 256), (300, 520, 200), (1, 1, 1), (2000, 1800, 72), (129, 257, 8), (70, 1003, 640)):
        check(world, shape, dtype, transposed, config=GemmConfig(direct=True, **fields))


@pytest.mark.parametrize("fields", [dict(tile_m=64, tile_n=128, stages=8, c_stages=1, consumers=1, direct=True, ahead=16),
                                    dict(tile_n=256, direct=True, ahead=4), dict(tile_n=128, stages=6, slices=4, direct=True, ahead=6)])
def test_operands_that_the_call_before_writes(world, fields):
    """What is asked for early may not be there yet: each call multiplies what the one before it has made."""
    cfg, n = GemmConfig(**fields), 384
    shift = torch.eye(n, device="cuda", dtype=torch.bfloat16).roll(1, 0)            # A @ shift: columns move by one
    x = [signs(n, n, seed=1), *(torch.empty(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))]
    truth = x[0].roll(-60, 1)
    for i in range(60):
        gemm(world, x[i % 3], shift, out=x[(i + 1) % 3], config=cfg)
    torch.cuda.synchronize()
    assert torch.equal(x[0], truth)


def test_clusters_in_a_row(world):
    """Blocks of a cluster never leave, nor begin, while others still reach into them: short kernels, one behind the other."""
    for shape in ((256, 256, 64), (128, 256, 64), (640, 512, 128)):
        a, b = signs(shape[0], shape[2], seed=1), signs(shape[1], shape[2], seed=2)
        truth, out = (a.float() @ b.T.float()).bfloat16(), torch.empty(*shape[:2], dtype=torch.bfloat16, device="cuda")
        for _ in range(300):
            gemm(world, a, b.T, out=out, config=GemmConfig(cluster=2))
        assert torch.equal(out, truth), shape


@pytest.mark.parametrize("transposed", [True, False])
def test_float16(world, transposed):
    for fields in SHIPPED[:2]:
        for shape in ((300, 520, 200), (1000, 1000, 1000)):
            check(world, shape, "float16", transposed, config=GemmConfig(**fields))


@pytest.mark.parametrize("k", [8, 64, 128, 192])
def test_short_loops_in_turns(world, k):
    """Main loops of one to three steps: a consumer is done before the other's panels are out. Many tiles for each block."""
    a, b = signs(4096, k, seed=1), signs(3840, k, seed=2)
    truth, out = (a.float() @ b.T.float()).bfloat16(), torch.empty(4096, 3840, dtype=torch.bfloat16, device="cuda")
    for fields in (f for f in SHIPPED if f.get("ping_pong")):
        for _ in range(20):
            out.fill_(float("nan"))
            gemm(world, a, b.T, out=out, config=GemmConfig(**fields))
            assert torch.equal(out, truth), fields


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_size(world, dtype):
    """Extents of 0, 1, odd and prime; rows that start anywhere; the chosen configuration."""
    sizes = (0, 1, 17, 131)
    for m, n, k in itertools.product(sizes, sizes, sizes):
        for transposed in (True, False):
            check(world, (m, n, k), dtype, transposed, left=3, pitch_of=1)
            check(world, (m, n, k), dtype, transposed)


@pytest.mark.parametrize("left, pitch_of", [(8, 8), (3, 8), (8, 1), (1, 1)])
def test_rows_that_start_anywhere(world, left, pitch_of):
    """Operands and result inside larger arrays, aligned as the copy engine wants it or not."""
    rng = np.random.default_rng(0)
    a, b = operands(rng, 150, 140, 130, "bfloat16")
    left_a, left_b = (guarded(x.shape, "bfloat16", left, pitch_of)[0] for x in (a, b))
    left_a.copy_(on_device(a)), left_b.copy_(on_device(b))
    out, around = guarded((150, 140), "bfloat16", left, pitch_of)
    for _ in range(3):
        gemm(world, left_a, left_b, out=out)
    assert_close(to_numpy(out), [(a, b)], "bfloat16")
    assert_untouched(out, around)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries(world, library, dtype):
    """The result belongs to the library of A."""
    rng = np.random.default_rng(1)
    a, b = operands(rng, 200, 136, 72, dtype)
    left, right = LIBRARIES[library](a), LIBRARIES[library](b)
    c = gemm(world, left, right)
    assert type(c) is type(left)
    world.synchronize()
    assert_close(to_numpy(c), [(a, b)], dtype)


def test_symmetric_arrays(world):
    rng = np.random.default_rng(2)
    a, b = operands(rng, 70, 36, 44, "bfloat16")
    arrays = [world.symmetric(x) for x in ((70, 44), (44, 36), (70, 36))]
    for array, x in zip(arrays, (a, b)):
        torch.from_dlpack(array).copy_(on_device(x))
    assert type(gemm(world, arrays[0], arrays[1], out=arrays[2])) is type(arrays[2].local)
    assert_close(to_numpy(torch.from_dlpack(arrays[2])), [(a, b)], "bfloat16")


@pytest.mark.parametrize("n", [4096, 8192])
def test_large(world, n):
    a, b = (torch.randn(n, n, device="cuda").bfloat16() for _ in range(2))
    c, truth = gemm(world, a, b.T), a.double() @ b.T.double()
    error = (c.double() - truth).norm() / truth.norm()
    assert float(error) < 2.5e-3, float(error)


def test_few_sms():
    for num_sms in (1, 5):
        with World.local(1, executor="gpu", num_sms=num_sms) as world:
            check(world, (700, 600, 200), "bfloat16", True)


# ---- streams

def test_follows_torchs_stream(world):
    """What the stream did before is finished, what it does next waits; nothing runs on another stream."""
    rng = np.random.default_rng(3)
    pairs = [operands(rng, 256, 256, 256, "bfloat16") for _ in range(20)]
    on_gpu = [(on_device(a), on_device(b)) for a, b in pairs]
    a, b, out = torch.empty_like(on_gpu[0][0]), torch.empty_like(on_gpu[0][1]), []
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for x, y in on_gpu:
            torch.cuda._sleep(1_000_000)
            a.copy_(x), b.copy_(y)
            out.append(gemm(world, a, b).clone())
    stream.synchronize()
    for c, pair in zip(out, pairs):
        assert_close(to_numpy(c), [pair], "bfloat16")


@pytest.mark.parametrize("kind", ["torch", "cupy", "number"])
def test_stream_argument(world, kind):
    rng = np.random.default_rng(4)
    a, b = operands(rng, 128, 128, 64, "bfloat16")
    stream = torch.cuda.Stream() if kind != "cupy" else pytest.importorskip("cupy").cuda.Stream(non_blocking=True)
    left, right = on_device(a), on_device(b)
    torch.cuda.synchronize()
    for _ in range(3):
        c = gemm(world, left, right, stream=stream.cuda_stream if kind == "number" else stream)
    stream.synchronize()
    assert_close(to_numpy(c), [(a, b)], "bfloat16")


def test_two_streams(world):
    """Products on two streams at the same time."""
    rng = np.random.default_rng(5)
    pairs = [operands(rng, 700, 500, 300, "bfloat16") for _ in range(2)]
    inputs, streams = [(on_device(a), on_device(b)) for a, b in pairs], [torch.cuda.Stream() for _ in range(2)]
    out = [torch.empty(700, 500, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for (a, b), c, stream in zip(inputs, out, streams):
            gemm(world, a, b, out=c, stream=stream)
    for c, pair in zip(out, pairs):
        assert_close(to_numpy(c), [pair], "bfloat16")


def test_calls_that_depend_on_each_other(world):
    """A chain without a pause: each call reads what the one before wrote, and its inputs are overwritten right after."""
    n = 512
    rotation = torch.roll(torch.eye(n, device="cuda"), 1, 0).bfloat16()
    x = torch.randint(-9, 10, (n, n), device="cuda").bfloat16()
    start, scratch = x.clone(), torch.empty_like(x)
    for _ in range(100):
        gemm(world, rotation, x, out=scratch)
        x.fill_(float("nan"))
        gemm(world, scratch, rotation, out=x)
        scratch.fill_(float("nan"))
    assert torch.equal(x, torch.roll(start, (100, -100), (0, 1)))


# ---- graphs

@pytest.mark.parametrize("shape", [(512, 384, 256), (150, 131, 77)], ids=["direct", "padded copies"])
def test_graph(world, shape):
    """Captured once, replayed 100 times with new values in the same arrays."""
    rng = np.random.default_rng(6)
    m, n, k = shape
    pairs = [operands(rng, m, n, k, "bfloat16") for _ in range(5)]
    on_gpu = [(on_device(a), on_device(b)) for a, b in pairs]
    a, b = on_gpu[0][0].clone(), on_gpu[0][1].clone()
    c = gemm(world, a, b)                                    # compiled and packed before the capture
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        gemm(world, a, b, out=c)
        gemm(world, a, b, out=c)
    results = []
    for i in range(100):
        a.copy_(on_gpu[i % 5][0]), b.copy_(on_gpu[i % 5][1])
        c.fill_(float("nan"))
        graph.replay()
        results.append(c.clone())
    for i in range(5):
        assert_close(to_numpy(results[i]), [pairs[i]], "bfloat16")
    assert all(torch.equal(x, results[i % 5]) for i, x in enumerate(results))
    world.check()


# ---- mistakes, and time

def test_wrong_arguments(world):
    a = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
    out = torch.full((64, 64), float("nan"), dtype=torch.bfloat16, device="cuda")
    for kind, left, right, options in (
            (WorldError, a.cpu(), a, {}), (WorldError, np.ones((64, 64), DTYPES["bfloat16"]), a, {}),
            (LayoutError, a[:, ::2], a[:32], {}), (LayoutError, a[:1].expand(64, 64), a, {}), (LayoutError, a, a, {"out": out.T}),
            (ConfigError, a, a, {"config": GemmConfig(stages=9)})):
        with pytest.raises(kind):
            gemm(world, left, right, **{"out": out, **options})
    torch.cuda.synchronize()
    assert bool(torch.isnan(out).all())


def test_host_time(world, record_property):
    """A repeated call; printed, not judged."""
    a, b = (torch.ones(64, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out, times = gemm(world, a, b), []
    for _ in range(200):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            gemm(world, a, b, out=out)
        times.append((time.perf_counter() - start) / 20)
    record_property("us", min(times) * 1e6)
    print(f"host time of a repeated call: {min(times) * 1e6:.1f} us")
