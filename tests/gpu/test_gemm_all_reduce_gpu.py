"""gemm_all_reduce on GPUs: ranks as threads that share one, or one each; calls in a row without a pause; ranks that do not come."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pknumba import World, config, gemm_all_reduce
from pknumba.config import GemmAllReduceConfig
from pknumba.errors import ConfigError, HangError, ShapeError, WorldError
from pknumba.runtime import driver

from ..kernels.products import DTYPES, assert_close, matrix
from .arrays import assert_untouched, guarded, on_device, signs, to_numpy, torch

ROOT = Path(__file__).resolve().parents[2]
AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]
SHIPPED = [fields for fields, *_ in config._GEMMS]


def ranks(size, main, **options):
    """main(world) on every rank; the results. torch is loaded before, so that it uses each rank's stream."""
    torch.cuda.init()
    with World.local(size, executor="gpu", **{"wait_limit_s": 20, "host_limit_s": 120, **options}) as world:
        return world.run(main)


def everyones(world, seed, shape, dtype):
    """Every rank's operands, the same on all ranks."""
    (m, n, k), rng = shape, np.random.default_rng(seed)
    return [(matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype)) for _ in range(world.size)]


def check(world, shape, dtype="bfloat16", transposed=True, out="guarded", seed=0, **options):
    """One call with this rank's share; its result against float64, the same bits on every rank."""
    pairs = everyones(world, seed, shape, dtype)
    a, b = pairs[world.rank]
    right = on_device(np.ascontiguousarray(b.T)).T if transposed else on_device(b)
    around = None
    if out == "guarded":
        out, around = guarded(shape[:2], dtype, 3 if seed % 2 else 8, 1 if seed % 2 else 8)
    elif out == "symmetric":
        out = world.symmetric(shape[:2], dtype)
    c = gemm_all_reduce(world, on_device(a), right, out=out, **options)
    world.synchronize()
    found = to_numpy(c)
    assert_close(found, pairs, dtype, (shape, dtype, transposed))
    if around is not None:
        assert_untouched(out, around)
    bits = world.allgather(found.view(np.uint16))
    assert all((x == bits[0]).all() for x in bits)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_any_size(size):
    def main(world):
        shapes = [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1), (17, 131, 9), (300, 520, 200), (1000, 700, 136)]
        for i, shape in enumerate(shapes):
            for dtype in DTYPES:
                check(world, shape, dtype, i % 2 == 0, ("guarded", None)[i // 2 % 2], seed=i)
        check(world, (300, 520, 200), out="symmetric")

    ranks(size, main)


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("fields", SHIPPED, ids=lambda f: "-".join(map(str, f.values())))
def test_shipped_configurations(fields, transposed):
    def main(world):
        for i, shape in enumerate(((512, 768, 256), (300, 520, 72), (129, 257, 8))):
            check(world, shape, "bfloat16", transposed, "symmetric", seed=i, config=GemmAllReduceConfig(comm_sms=4, **fields))

    ranks(2, main)


def warm(world):
    """Load torch's kernels while nobody spins: loading one may wait for the device."""
    x = signs(64, 64)
    x.copy_(x.clone()), (x.float() @ x.float() + x.float()).bfloat16(), torch.equal(x, x), torch.cuda._sleep(1)
    world.synchronize()
    world.barrier()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_calls_in_a_row(size):
    """100 calls, new values in the same arrays, ranks late in turn, no host synchronisation: every result is exact."""
    m, n, k, calls = 500, 392, 64, 100

    def main(world):
        a, b = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, k), (k, n)))
        out = [world.symmetric((m, n)) for _ in range(2)]
        seen, late = [torch.from_dlpack(x) for x in out], np.random.default_rng(7).integers(0, world.size, calls)
        kept, truth = [], []
        warm(world)
        for call in range(calls):
            everyone = [(signs(m, k, seed=1000 * call + r), signs(k, n, seed=1000 * call + r + 500)) for r in range(world.size)]
            truth.append(sum((x.float() @ y.float()) for x, y in everyone).bfloat16())
            a.copy_(everyone[world.rank][0]), b.copy_(everyone[world.rank][1])
            if late[call] == world.rank:
                torch.cuda._sleep(2_000_000)
            gemm_all_reduce(world, a, b, out=out[call % 2])
            kept.append(seen[call % 2].clone())
        world.synchronize()
        wrong = [call for call in range(calls) if not torch.equal(kept[call], truth[call])]
        assert not wrong, f"wrong results of calls {wrong}"

    ranks(size, main)


@pytest.mark.parametrize("size", [2, 4])
def test_calls_with_nothing_between_them(size):
    """Launched one right behind the other while a rank is late: the next call must not take the SMs that the late rank needs."""
    shape = (1000, 900, 64)

    def main(world):
        (m, n, k), seeds = shape, range(world.size)
        a, b = signs(m, k, seed=world.rank), signs(k, n, seed=world.rank + 50)
        truth = sum(signs(m, k, seed=r).float() @ signs(k, n, seed=r + 50).float() for r in seeds).bfloat16()
        out = [world.symmetric((m, n)) for _ in range(3)]
        for x in out:
            gemm_all_reduce(world, a, b, out=x)
        warm(world)
        for late in range(world.size):
            if world.rank == late:
                torch.cuda._sleep(10_000_000)
            for call in range(12):
                gemm_all_reduce(world, a, b, out=out[call % 3])
        world.synchronize()
        assert all(torch.equal(torch.from_dlpack(x), truth) for x in out)

    ranks(size, main)


@pytest.mark.parametrize("size", [1, 2])
def test_graph(size):
    """Captured once on every rank, replayed 100 times: epochs are counted on the device."""
    m, n, k = 260, 200, 64

    def main(world):
        inputs = [[(signs(m, k, seed=10 * i + r), signs(k, n, seed=10 * i + r + 5)) for r in range(world.size)] for i in range(5)]
        truths = [sum(x.float() @ y.float() for x, y in pairs).bfloat16() for pairs in inputs]
        a, b = (x.clone() for x in inputs[0][world.rank])
        out = world.symmetric((m, n))
        seen = torch.from_dlpack(out)
        gemm_all_reduce(world, a, b, out=out)
        warm(world)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.ExternalStream(world.stream) if world.stream else torch.cuda.Stream()
        for turn in range(world.size):                       # who captures forbids others to wait for the device
            if world.rank == turn:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    gemm_all_reduce(world, a, b, out=out)
            world.barrier()
        kept = []
        with torch.cuda.stream(stream):
            for i in range(100):
                a.copy_(inputs[i % 5][world.rank][0]), b.copy_(inputs[i % 5][world.rank][1])
                graph.replay()
                kept.append(seen.clone())
            gemm_all_reduce(world, a, b, out=out)            # and a plain call after them
            kept.append(seen.clone())
        stream.synchronize()
        wrong = [i for i in range(101) if not torch.equal(kept[i], truths[min(i, 99) % 5])]
        assert not wrong, f"wrong results of replays {wrong}"

    ranks(size, main)


def test_one_rank_follows_torchs_stream():
    def main(world):
        for i, stream in enumerate((torch.cuda.Stream(), torch.cuda.Stream())):
            a, b = signs(200, 64, seed=i), signs(64, 136, seed=i + 9)
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                c = gemm_all_reduce(world, a, b)
                kept = c.clone()
            stream.synchronize()
            assert torch.equal(kept, (a.float() @ b.float()).bfloat16())

    ranks(1, main)


# ---- a rank that does not come, or comes with something else

def test_a_rank_that_does_not_come():
    """The device's bounded wait ends, and says who waited for what; a new world works."""
    shape = (300, 200, 64)

    def main(world):
        check(world, shape, out=None)                        # agreed on, compiled, loaded
        if world.rank == 0:
            a, b = (on_device(x) for x in everyones(world, 0, shape, "bfloat16")[0])
            for _ in range(2):                               # the second is launched behind the one that hangs
                gemm_all_reduce(world, a, b.T.contiguous().T)
            world.synchronize()

    for _ in range(2):
        with pytest.raises(HangError) as caught:
            ranks(2, main, wait_limit_s=1)
        error = caught.value
        assert "GemmAllReduce: rank 0 block " in str(error) and " waits for counter " in str(error), str(error)
        assert error.record.rank == 0 and error.record.expected > error.record.seen, error.record
        # Storers wait for the owner to have come, communicators for what it should have sent; which of them gives up first is a race.
        assert any(f"waits for counter {name}[" in str(error) for name in ("ready", "done", "finished")), str(error)
        ranks(2, lambda world: check(world, shape))


def test_world_after_a_hang_is_broken():
    def main(world):
        check(world, (64, 64, 64), out=None)
        if world.rank == 1:
            return
        a = signs(64, 64)
        gemm_all_reduce(world, a, a.T)
        with pytest.raises(HangError):
            world.synchronize()
        gemm_all_reduce(world, a, a.T)

    with pytest.raises(WorldError, match="broken"):
        ranks(2, main, wait_limit_s=1)


@pytest.mark.parametrize("what, kind", [("shape", ShapeError), ("config", ConfigError), ("out", WorldError), ("layout", WorldError)])
def test_ranks_that_differ(what, kind):
    """Every rank learns it before anything is launched; afterwards the world works."""
    def main(world):
        odd = world.rank == 1
        a, b = signs(64 + 8 * (odd and what == "shape"), 64), signs(64, 64)
        options = {"config": GemmAllReduceConfig(comm_sms=2 + (odd and what == "config"))}
        options["out"] = world.symmetric((64, 64)) if what == "out" else None
        if odd and what == "out":
            options["out"] = None
        with pytest.raises(kind):
            gemm_all_reduce(world, a, b.T if odd and what == "layout" else b, **options)
        check(world, (64, 64, 64))

    ranks(2, main)


# ---- ranks as processes

@pytest.mark.parametrize("size", [2, 4, 8])
def test_processes_under_mps(size):
    """1,000 calls of every rank in a process of its own, all on one GPU by CUDA IPC."""
    under_mps(size, "many_calls.py", 240)


def under_mps(size, program, seconds, calls=1000):
    """Many calls of a program of this folder by so many ranks under MPS: it must print PASS once, within that time."""
    pytest.importorskip("mpi4py")
    if not shutil.which("nvidia-cuda-mps-control"):
        pytest.skip("no nvidia-cuda-mps-control")
    torch.cuda.init()
    command = ["bash", str(ROOT / "scripts" / "mps"), "run", "-n", str(size), "--", sys.executable, "-W", "ignore",
               str(ROOT / "tests" / "gpu" / program), "--calls", str(calls)]
    code, out = bounded(command, environment(), seconds)
    print(out[-3000:])
    assert code == 0 and out.count("PASS") == 1, out[-3000:]


def environment(**more):
    """Of a program that a test starts: without what conftest.py sets for ranks as threads. Of 32 connections for each process MPS has too
    few for four."""
    packages = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {k: v for k, v in os.environ.items() if k not in ("CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS")}
    return {**kept, "PYTHONPATH": packages, "PATH": path, **more}


def bounded(command, env, seconds):
    """(status, output) of a command; it and all its children end after that time."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        out = process.communicate(timeout=seconds)[0]
        return process.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)               # scripts/mps stops the service on its way out
        return "timeout", process.communicate(timeout=30)[0]
