"""The runtime on a real GPU: memory, views, launches, tensor maps."""

import ctypes
import subprocess
import sys
import time

import numpy as np
import pytest

from pknumba.errors import DriverError
from pknumba.runtime import DeviceArray, Launch, describe, driver, tensormap

from .runtime_kernels import cubin, u32, u64, world  # noqa: F401 - two of them are fixtures

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]


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
    """A box at the corner of a matrix of any width: beyond the edge it reads zero.

    Boxes start on 16 bytes: at column 30 the H200 reported an illegal instruction.
    """
    pitch = -(-cols * 2 // 16) * 16
    x = np.random.default_rng(0).integers(1, 60000, (20, cols)).astype("u2")
    memory = DeviceArray.of(np.full((20, pitch // 2), 65535, "u2"))
    view = DeviceArray(memory.pointer, x.shape, "uint16", 0, (pitch, 2))
    view.set(x)
    out = DeviceArray.of(np.zeros((8, 64), "u2"))
    data = tensormap.encode(memory.pointer, x.shape, pitch, "bfloat16", (8, 64), 0)
    row, col = 16, (cols - 40) // 8 * 8
    driver.load(cubin, "box").launcher(1, 128, [(data, 64), u64(out.pointer), *u32(row, col)]).fire()
    expected = np.zeros((8, 64), "u2")
    expected[:4, :cols - col] = x[16:, col:]
    assert (out.get() == expected).all()


def test_import_is_light():
    code = "import sys, pknumba.runtime; print([m for m in ('cupy', 'torch', 'numba', 'mpi4py', 'cuda') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
