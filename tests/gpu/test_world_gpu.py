"""Worlds on a real GPU: ranks that share it, CUDA IPC between processes, hang records."""

from pathlib import Path

import numpy as np
import pytest

from pknumba.errors import HangError, WorldError
from pknumba.runtime import World, driver, hang

from .runtime_kernels import cubin, u32, u64, world  # noqa: F401 - two of them are fixtures

ROOT = Path(__file__).resolve().parent.parent.parent
AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]


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
    world._here.abort(0)
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
