"""The runtime on a real GPU: memory, views, launches, tensor maps, CUDA IPC between processes, hang records.

Kernels here are CUDA C++ compiled by NVRTC, so that nothing but the runtime is under test.
"""

import ctypes
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pknumba.errors import DriverError, HangError, WorldError
from pknumba.runtime import DeviceArray, Launch, World, describe, driver, hang, tensormap

ROOT = Path(__file__).resolve().parent.parent.parent
AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]

SOURCE = r"""
extern "C" __global__ void add(unsigned *x, unsigned n, unsigned by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}
extern "C" __global__ void spread(unsigned long long *peers, unsigned size, unsigned value) {   // writes into every rank
    if (threadIdx.x < size) ((unsigned *)peers[threadIdx.x])[value] = value + 1;
}
extern "C" __global__ void wait_for(const unsigned *flag, const unsigned long long *context, unsigned expected) {
    unsigned long long limit = context[2], start, now;
    volatile unsigned *record = (volatile unsigned *)context[0], *abort = (volatile unsigned *)context[1];
    unsigned rank = (unsigned)context[3], number = (unsigned)(context[4] >> 32);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while (*(volatile const unsigned *)flag < expected) {
        if (*abort) return;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (limit && now - start > limit) {
            record[1] = rank; record[2] = 3; record[3] = 1; record[4] = 2; record[5] = 7; record[6] = expected; record[7] = *flag;
            record[8] = number;
            __threadfence_system();
            record[0] = 0x600DF00D;
            *abort = 1;
            return;
        }
    }
}
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void box(const __grid_constant__ Map map, unsigned short *out, int row, int col) {
    __shared__ alignas(128) unsigned short tile[8 * 64];
    __shared__ alignas(8) unsigned long long bar;
    unsigned b = (unsigned)__cvta_generic_to_shared(&bar), t = (unsigned)__cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(b) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(t), "l"(&map), "r"(col), "r"(row), "r"(b) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(b) : "memory");
    for (unsigned i = threadIdx.x; i < 512; i += blockDim.x) out[i] = tile[i];
}
"""


@pytest.fixture(scope="module")
def cubin():
    core = pytest.importorskip("cuda.core")
    program = core.Program(SOURCE, "c++", core.ProgramOptions(arch="sm_90a", std="c++17"))
    return bytes(program.compile("cubin").code)


@pytest.fixture
def world():
    with World.local(1, executor="gpu", wait_limit_s=0.3) as world:
        yield world


def u32(*values):
    return [struct.pack("<I", v & 0xffffffff) for v in values]


def u64(value):
    return struct.pack("<Q", value)


def test_device_info():
    info = driver.device_info(0)
    assert info.capability >= (9, 0) and info.shared_optin == 232448 and info.sms > 0 and len(info.uuid) == 32


def test_launch(world, cubin):
    x = DeviceArray.of(np.arange(1000, dtype="u4"))
    launch = driver.load(cubin, "add").launcher(4, 256, [u64(x.pointer), *u32(1000, 5)])
    launch.fire()
    assert (x.get() == np.arange(1000) + 5).all()
    launch.update(2, u32(7)[0])
    stream = driver.stream_create()
    launch.fire(stream)
    driver.stream_synchronize(stream)
    driver.stream_destroy(stream)
    assert (x.get() == np.arange(1000) + 12).all()


@pytest.mark.parametrize("options", [dict(pdl=True), dict(cooperative=True), dict(cluster=2), dict(cluster=2, cooperative=True)])
def test_launch_attributes(world, cubin, options):
    x = DeviceArray.of(np.zeros(1024, "u4"))
    launch = driver.load(cubin, "add").launcher(4, 256, [u64(x.pointer), *u32(1024, 1)], **options)
    for _ in range(3):
        launch.fire()
    assert (x.get() == 3).all()


def test_a_cooperative_grid_that_does_not_fit(world, cubin):
    x = DeviceArray.of(np.zeros(4, "u4"))
    launch = driver.load(cubin, "add").launcher(1 << 20, 1024, [u64(x.pointer), *u32(4, 1)], cooperative=True)
    with pytest.raises(DriverError, match="COOPERATIVE_LAUNCH_TOO_LARGE.*resident at once"):
        launch.fire()


def test_shared_memory_beyond_48_kib(world, cubin):
    f = driver.load(cubin, "add", 200000)
    x = DeviceArray.of(np.zeros(4, "u4"))
    Launch(f, 1, 32, 200000, [u64(x.pointer), *u32(4, 1)]).fire()
    assert (x.get() == 1).all() and f.blocks_per_sm(32) == 1 and f.registers > 0


def test_launch_is_quick(world, cubin, record_property):
    x = DeviceArray.of(np.zeros(4, "u4"))
    launch = driver.load(cubin, "add").launcher(1, 32, [u64(x.pointer), *u32(4, 0)])
    best = 1.0
    for _ in range(20):
        world.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            launch.fire(0)
        best = min(best, (time.perf_counter() - start) / 200)
    record_property("us", best * 1e6)
    print(f"fire: {best * 1e6:.2f} us")
    assert best < 30e-6


def test_wrong_cubin_is_a_driver_error(world):
    with pytest.raises(DriverError):
        driver.load(b"no cubin at all" * 10, "add")


def test_copies(world):
    a = DeviceArray.of(np.arange(48, dtype="u1").reshape(6, 8))
    b = DeviceArray.of(np.zeros((6, 16), "u1"))
    driver.copy_2d(b.pointer, 16, a.pointer, 8, 5, 6)
    assert (b.get()[:, :5] == a.get()[:, :5]).all() and not b.get()[:, 5:].any()
    driver.memset(b.pointer, 9, 16)
    assert (b.get()[0] == 9).all()
    host, device = driver.alloc_host(256)
    ctypes.memset(host, 3, 256)
    driver.copy_2d(b.pointer, 16, device, 16, 16, 6)  # pinned memory is memory that the driver knows
    assert (b.get() == 3).all()
    driver.free_host(host)


@pytest.mark.parametrize("dtype, values", [("float32", "f4"), ("bfloat16", "f4"), ("uint32", "u4")])
def test_device_array_round_trip(world, dtype, values):
    x = np.arange(15, dtype=values).reshape(3, 5)
    a = DeviceArray.empty((3, 5), dtype).set(x)
    assert (a.get().astype(values) == x).all()
    s = world.symmetric((3, 5), dtype)
    assert s.pitch % 16 == 0
    t = DeviceArray(s.pointer, s.shape, dtype, s.device, s.strides)
    assert (t.set(x).get().astype(values) == x).all()


# ---- other libraries

def test_torch_views(world):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    x = torch.arange(24, device="cuda", dtype=torch.bfloat16).reshape(4, 6)
    info = describe(x[:, 1:].T, "x")
    assert info.shape == (5, 4) and info.strides == (2, 12) and info.dtype == "bfloat16" and info.device == 0
    assert info.pointer == x.data_ptr() + 2
    s = world.symmetric((4, 6), "bfloat16")
    y = torch.from_dlpack(s)
    assert y.dtype == torch.bfloat16 and y.data_ptr() == s.pointer and y.stride() == (8, 1)
    y.copy_(x)
    torch.cuda.synchronize()
    got = DeviceArray(s.pointer, s.shape, "bfloat16", 0, s.strides).get()
    assert (got.astype("f4") == np.arange(24).reshape(4, 6)).all()
    z = torch.as_tensor(world.symmetric((4, 6), "float32"), device="cuda")
    assert z.dtype == torch.float32 and z.shape == (4, 6)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert world.stream_of(None, x) == torch.cuda.current_stream().cuda_stream != 0
    del y, z


def test_cupy_views(world):
    cupy = pytest.importorskip("cupy")
    x = cupy.arange(24, dtype="f4").reshape(4, 6)
    assert describe(x[1:, ::2])[1:5] == ((3, 3), (24, 8), "float32", 0)
    s = world.symmetric((4, 6), "float32")
    assert isinstance(s.local, cupy.ndarray) and s.local.strides == (32, 4) and s.local.data.ptr == s.pointer
    s.local[...] = x
    assert (cupy.asnumpy(s.peer(0)) == np.arange(24).reshape(4, 6)).all()
    half = world.symmetric((4, 6), "bfloat16")
    print(f"bfloat16 in CuPy {cupy.__version__}: {type(half.local).__name__}")
    assert describe(half.local)[:5] == (half.pointer, (4, 6), (16, 2), "bfloat16", 0)
    y = world.asarray(np.ones((2, 2), "f4"))
    assert float(y.sum()) == 4
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert world.stream_of(None, x) == stream.ptr
    assert world.stream_of(stream) == stream.ptr


def test_captured_in_a_graph(world, cubin):
    cupy = pytest.importorskip("cupy")
    x = cupy.zeros(256, "u4")
    launch = driver.load(cubin, "add").launcher(1, 256, [u64(x.data.ptr), *u32(256, 1)])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        launch.fire(stream.ptr)
        launch.fire(stream.ptr)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
    stream.synchronize()
    assert (x.get() == 6).all()


# ---- tensor maps

@pytest.mark.parametrize("cols", [64, 70])
def test_tensor_map(world, cubin, cols):
    """A box at the corner of a matrix of any width: beyond the edge it reads zero."""
    pitch = -(-cols * 2 // 16) * 16
    x = np.random.default_rng(0).integers(1, 60000, (20, cols)).astype("u2")
    memory = DeviceArray.of(np.full((20, pitch // 2), 65535, "u2"))
    view = DeviceArray(memory.pointer, x.shape, "uint16", 0, (pitch, 2))
    view.set(x)
    out = DeviceArray.of(np.zeros((8, 64), "u2"))
    data = tensormap.encode(memory.pointer, x.shape, pitch, "bfloat16", (8, 64), 0)
    row, col = 16, cols - 40
    driver.load(cubin, "box").launcher(1, 128, [(data, 64), u64(out.pointer), *u32(row, col)]).fire()
    expected = np.zeros((8, 64), "u2")
    expected[:4, :40] = x[16:, col:]
    assert (out.get() == expected).all()


# ---- worlds

def test_hang_record(world, cubin):
    flag = world.counters("flag", 8)
    names = {"role": {1: "storer"}, "kind": {2: "counter"}, "which": {7: "ready[7]"}}
    block = world.context(names=names)
    launch = driver.load(cubin, "wait_for").launcher(1, 1, [u64(flag.pointer), u64(block.pointer), *u32(1)])
    driver.memset_u32(flag.pointer, 1, 1)
    launch.fire()
    world.synchronize()  # the flag is up: no wait
    driver.memset_u32(flag.pointer, 0, 1)
    launch.fire()
    with pytest.raises(HangError, match=r"rank 0 block 3 storer waits for counter ready\[7\]: expected 1, seen 0"):
        world.synchronize()
    with pytest.raises(WorldError, match="broken"):
        world.barrier()


def test_abort_ends_waits(world, cubin):
    flag, block = world.counters("flag", 8), world.context(limit_s=0)  # no limit: only the abort word ends it
    stream = driver.stream_create()
    driver.load(cubin, "wait_for").launcher(1, 1, [u64(flag.pointer), u64(block.pointer), *u32(1)]).fire(stream)
    assert not driver.stream_done(stream)
    world._here.abort()
    driver.stream_synchronize(stream)
    world.check()
    assert hang.MAGIC_VALUE == 0x600DF00D


def test_local_ranks_share_the_gpu(cubin):
    def main(world):
        a = world.symmetric((1, 64), "uint32")
        driver.memset_u32(a.pointer, 0, 64, world.stream)
        world.synchronize()
        world.barrier()
        spread = driver.load(cubin, "spread").launcher(1, 32, [u64(a.peers_table), *u32(world.size, world.rank)])
        spread.fire(world.stream)
        world.synchronize()
        world.barrier()
        got = np.frombuffer(driver.copy_out(a.pointer, 16), "u4")
        return got.tolist(), world.num_sms

    with World.local(3, executor="gpu") as world:
        results = world.run(main)
    sms = driver.device_info(0).sms // (3 if driver.device_count() == 1 else 1)
    assert [r[0] for r in results] == [[1, 2, 3, 0]] * 3
    if driver.device_count() == 1:
        assert [r[1] for r in results] == [sms] * 3


IPC = r"""
import sys, numpy as np
from pknumba.runtime import World, driver
import struct
cubin = open(sys.argv[1], "rb").read()
with World.mpi(executor="gpu", host_limit_s=60) as world:
    for trial in range(3):
        with world.symmetric((1, 64), "uint32") as a:
            driver.memset_u32(a.pointer, 0, 64)
            world.synchronize(); world.barrier()
            params = [struct.pack("<Q", a.peers_table), struct.pack("<I", world.size), struct.pack("<I", world.rank)]
            driver.load(cubin, "spread").launcher(1, 32, params).fire(0)
            world.synchronize(); world.barrier()
            mine = np.frombuffer(driver.copy_out(a.pointer, 16), "u4").tolist()
            assert mine == [1, 2, 0, 0], mine
            other = np.frombuffer(driver.copy_out(a.pointers[1 - world.rank], 16), "u4").tolist()
            assert other == mine, other
    print(f"fine {world.num_sms}", flush=True)
"""


def test_ipc_between_two_processes(cubin, tmp_path, mpirun, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script, binary = tmp_path / "ipc.py", tmp_path / "kernels.cubin"
    script.write_text(IPC)
    binary.write_bytes(cubin)
    done = mpirun(2, "-W", "ignore", script, binary)
    assert done.returncode == 0 and done.stdout.count("fine") == 2, done.stdout + done.stderr


def test_import_is_light():
    code = "import sys, pknumba.runtime; print([m for m in ('cupy', 'torch', 'numba', 'mpi4py', 'cuda') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
