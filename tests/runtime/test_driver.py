"""Driver calls: what is called, in which order, and what errors become."""

import struct

import numpy as np
import pytest

from pknumba.errors import ConfigError, DriverError, UnsupportedError
from pknumba.runtime import driver, libcuda
from pknumba.runtime.launch import Launch, pack


def test_without_a_driver_everything_says_so(monkeypatch):
    monkeypatch.setattr(libcuda, "LIBRARY", "libnothing-of-this-name.so")
    libcuda.unload()
    try:
        ok, why = driver.available()
        assert not ok and "libnothing-of-this-name.so cannot be loaded" in why
        with pytest.raises(UnsupportedError, match="Install one, or use executor"):
            driver.alloc(1)
    finally:
        libcuda.unload()


def test_no_device(stub, monkeypatch):
    monkeypatch.setenv("STUB_DEVICES", "0")
    libcuda.unload()
    ok, why = driver.available()
    assert not ok and "CUDA_VISIBLE_DEVICES" in why


def test_device_info(stub):
    info = driver.device_info(0)
    assert (info.name, info.sms, info.capability, info.shared_optin, info.mps) == ("STUB H200 0", 132, (9, 0), 232448, False)
    assert driver.device_count() == 1 and driver.version() == 13000


def test_errors_carry_code_name_and_remedy(stub):
    stub.fail("cuMemAlloc_v2", 2)
    with pytest.raises(DriverError, match="C: cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY.*Close symmetric arrays") as caught:
        driver.alloc(1 << 20, about="C")
    assert caught.value.code == 2 and caught.value.result == "CUDA_ERROR_OUT_OF_MEMORY"
    stub.fail("cuIpcOpenMemHandle_v2", 217)
    with pytest.raises(UnsupportedError, match="PEER_ACCESS_UNSUPPORTED"):
        driver.ipc_open(bytes(64))
    stub.fail("cuStreamSynchronize", 999)
    with pytest.raises(DriverError, match="CUresult 999"):
        driver.stream_synchronize(0)


def test_contexts_are_retained_once_and_restored(stub, monkeypatch):
    monkeypatch.setenv("STUB_DEVICES", "2")
    with driver.using(1):
        assert driver.current_device() == 1
    assert driver.current_device() == 0
    with driver.using(1):
        pass
    assert stub.log("cuDevicePrimaryCtxRetain") == ["cuDevicePrimaryCtxRetain 1"]


def test_copies_move_bytes(stub):
    a = driver.alloc(256)
    driver.memset(a, 0, 256)
    driver.copy_in(a, bytes(range(200)))
    assert driver.copy_out(a + 10, 5) == bytes(range(10, 15))
    b = driver.alloc(256)
    driver.copy_2d(b, 32, a, 16, 4, 3)
    assert driver.copy_out(b + 32, 4) == bytes(range(16, 20)) and driver.copy_out(b + 64, 4) == bytes(range(32, 36))
    driver.memset_u32(a, 7, 2)
    assert struct.unpack("<2I", driver.copy_out(a, 8)) == (7, 7)
    driver.copy(b, a, 8)
    assert driver.copy_out(b, 4) == struct.pack("<I", 7)
    driver.copy_2d(b, 32, a, 16, 0, 3)
    driver.copy_in(a, b"")
    driver.free(a), driver.free(b)
    assert len(stub.log("cuMemcpy2DAsync_v2")) == 1  # nothing is asked for nothing


def test_ipc_handles_pass_by_value(stub):
    a = driver.alloc(4096)
    driver.copy_in(a, b"hello")
    handle = driver.ipc_export(a)
    assert isinstance(handle, bytes) and len(handle) == 64
    b = driver.ipc_open(handle)
    assert b != a and driver.copy_out(b, 5) == b"hello"
    assert stub.log("cuIpcOpenMemHandle_v2") == ["cuIpcOpenMemHandle_v2 1"]  # peer access is enabled lazily
    driver.ipc_close(b)


def test_load_raises_the_shared_memory_limit_and_loads_eagerly(stub):
    f = driver.load(b"CUBIN...", "kernel", 200000)
    assert stub.log("cuModuleLoadData", "cuModuleGetFunction", "cuFuncLoad", "cuFuncSetAttribute") == [
        "cuModuleLoadData CUBIN...", "cuModuleGetFunction kernel", "cuFuncLoad", "cuFuncSetAttribute 8=200000"]
    assert (f.registers, f.device, f.blocks_per_sm(384)) == (168, 0, 1)
    f.unload(), f.unload()
    assert len(stub.log("cuModuleUnload")) == 1


# ---- launches

def launch_log(stub):
    return [line.split(" ", 1)[1] for line in stub.log("cuLaunchKernelEx")]


def test_launch_packs_everything(stub):
    f = driver.load(b"x", "k", 1000)
    launch = Launch(f, 132, 384, 1000, [struct.pack("<I", 42), bytes(128), b"\1\0"])
    launch.fire(0), launch.fire(5), launch.fire(0)
    base = "grid 132,1,1 block 384,1,1 shared 1000 stream {} device 0 first 42 align 0"
    assert launch_log(stub) == [base.format(0), base.format(1), base.format(0)]
    launch.update(0, struct.pack("<I", 43))
    launch.fire()
    assert "first 43" in launch_log(stub)[-1]
    with pytest.raises(ConfigError, match="argument 0 has 4 bytes, 8 given"):
        launch.update(0, bytes(8))


def test_launch_attributes(stub):
    f = driver.load(b"x", "k")
    f.launcher((8, 2), (64, 2), [], cooperative=True, pdl=True, cluster=2).fire()
    assert launch_log(stub)[0].startswith("grid 8,2,1 block 64,2,1 shared 0") and launch_log(stub)[0].endswith(
        "attr2=1,0,0 attr4=2,1,1 attr6=1,0,0")
    assert f.launcher(8, 64, [], cluster=2).max_clusters() == 66


def test_pack_aligns_each_argument():
    buffer, places = pack([b"\1" * 4, (b"\2" * 4, 4), (b"\3", 64), b"\4" * 128, b"\5" * 8])
    base = places[0]
    assert [p - base for p in places] == [0, 4, 64, 128, 256] and base % 128 == 0
    with pytest.raises(ConfigError, match="power of two"):
        pack([(b"1", 3)])
    with pytest.raises(ConfigError, match="bytes of arguments"):
        pack([bytes(40000)])
    del buffer


@pytest.mark.parametrize("grid, block, shared, cluster, text", [
    (1, 1, 2000, 1, "loaded for 1000"), (0, 1, 0, 1, "at least one block"), (1, 2048, 0, 1, "1 to 1024 threads"),
    (3, 1, 0, 2, "multiple of the cluster")])
def test_impossible_launches_are_refused(stub, grid, block, shared, cluster, text):
    f = driver.load(b"x", "kern", 1000)
    with pytest.raises(ConfigError, match=f"kern: .*{text}"):
        Launch(f, grid, block, shared, [], cluster=cluster)


def test_launch_errors_name_the_kernel(stub):
    launch = Launch(driver.load(b"x", "kern"), 999, 64, 0, [], cooperative=True)
    stub.fail("cuLaunchKernelEx", 720)
    with pytest.raises(DriverError, match="kern \\(grid .999.*COOPERATIVE_LAUNCH_TOO_LARGE.*resident at once"):
        launch.fire()


def test_launch_finds_its_device_when_another_is_current(stub, monkeypatch):
    monkeypatch.setenv("STUB_DEVICES", "2")
    launch = Launch(driver.load(b"x", "k", device=1), 1, 1, 0, [])
    stub.fail("cuLaunchKernelEx", 400)  # what the driver says to a handle of another context
    launch.fire()
    assert [line.split(" device ")[1][0] for line in launch_log(stub)] == ["0", "1"]
    assert driver.current_device() == 0


def test_launch_is_quick(stub):
    import timeit
    launch = Launch(driver.load(b"x", "k"), 132, 384, 0, [bytes(8)] * 12)
    per_launch = min(timeit.repeat(lambda: launch.fire(0), number=2000, repeat=5)) / 2000
    assert per_launch < 20e-6, f"{per_launch * 1e6:.1f} us (the stand-in itself logs for about one)"


def test_no_multicast_in_the_runtime():
    assert not any("ulticast" in name for name in libcuda._PROTOTYPES)


def test_device_array_round_trip(stub):
    from pknumba.runtime import DeviceArray
    x = np.arange(12, dtype="f4").reshape(3, 4)
    a = DeviceArray.of(x)
    assert (a.get() == x).all() and a.nbytes == 48 and a.strides == (16, 4)
    assert (a.fill(3).get() == 3).all()
    assert DeviceArray.of(np.float32(5)).get() == 5
    assert DeviceArray.of(np.zeros((0, 4), "f4")).get().shape == (0, 4)
    live = stub.live()
    del a
    assert stub.live() == live - 1
