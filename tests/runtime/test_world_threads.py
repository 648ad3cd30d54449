"""Local worlds on GPUs, with the stand-in for the driver: ranks are threads; what they allocate, share and give back."""

import gc
import os
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from pknumba.errors import ConfigError, DriverError, HangError, UnsupportedError
from pknumba.runtime import World, driver


def test_ranks_share_a_device_in_equal_parts(stub):
    with World.local(3, executor="gpu") as world:
        assert world.run(lambda w: (w.num_sms, w.device, w.stream != 0)) == [(44, 0, True)] * 3
    assert len(stub.log("cuStreamCreate")) == 3
    with World.local(1, executor="gpu") as world:
        assert (world.num_sms, world.stream) == (132, 0)
    with pytest.raises(ConfigError, match="num_sms = 200"):
        World.local(1, executor="gpu", num_sms=200)


def test_cuda_starts_in_an_environment_for_threads(stub, monkeypatch):
    """It reads its environment once: also where ``auto`` has to start it to see whether there is a GPU."""
    names = "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"
    for name in names:
        monkeypatch.setenv(name, "unset when the test ends")
        monkeypatch.delenv(name)
    seen, there = [], driver.available
    monkeypatch.setattr(driver, "available", lambda: (seen.append([os.environ.get(n) for n in names]), there())[1])
    for size, executor, wanted in ((1, "auto", [None, None]), (2, "interpreter", None), (2, "auto", ["EAGER", "32"])):
        seen.clear()
        World.local(size, executor=executor).close()
        assert (seen[0] if wanted else None) == wanted, (size, executor)


def test_a_rank_reads_on_its_own_stream_and_run_waits_for_it(stub):
    """A kernel of a rank is on the rank's stream, which waits for no other: ``get`` first waits for it, and so does the end of ``run``."""
    with World.local(2, executor="gpu") as world:
        stub.clear()
        results = world.run(lambda w: w.asarray(np.ones((2, 2), ml_dtypes.bfloat16)))
        assert stub.log("cuStreamSynchronize")[-2:] == ["cuStreamSynchronize 1"] * 2, "the caller may read what comes back"
        stub.clear()
        world.run(lambda w: w.rank or results[0].get())
        assert stub.log("cuStreamSynchronize")[0] == "cuStreamSynchronize 1"
        stub.clear()
        assert (results[0].get() == 1).all() and set(stub.log("cuStreamSynchronize")) == {"cuStreamSynchronize 0"}


def test_what_is_dropped_while_ranks_run_is_freed_when_they_have_ended(stub):
    """Freeing waits for all kernels, and another rank's kernel may wait for this rank: so neither a dropped array nor a world that was
    dropped before, which the garbage collector finds in some rank's thread, is given back meanwhile."""
    earlier = [World.local(1, executor="gpu")]
    earlier[0].counters("x", 3)

    def main(world):
        x = world.asarray(np.ones(5, ml_dtypes.bfloat16))
        place = x.pointer
        del x
        if world.rank == 0:
            earlier.clear()
            gc.collect()
        world.barrier()
        again, other = (world.asarray(np.ones(n, ml_dtypes.bfloat16)).pointer == place for n in (5, 6))
        return again, other, stub.log("cuMemFree_v2") + stub.log("cuMemFreeHost")

    with World.local(2, executor="gpu") as world:
        stub.clear()
        assert world.run(main) == [(True, False, [])] * 2, "as many bytes are taken up again, and nothing was freed"
        assert len(stub.log("cuMemFree_v2")) >= 2 * 2 + 1 and len(stub.log("cuMemFreeHost")) == 1


def test_ranks_on_two_devices_enable_peer_access(stub, monkeypatch):
    monkeypatch.setenv("STUB_DEVICES", "2")
    with World.local(2, executor="gpu") as world:
        assert world.run(lambda w: (w.device, w.num_sms)) == [(0, 132), (1, 132)]
    assert sorted(stub.log("cuCtxEnablePeerAccess")) == ["cuCtxEnablePeerAccess 0", "cuCtxEnablePeerAccess 1"]
    monkeypatch.setenv("STUB_PEERS", "0")
    with pytest.raises(UnsupportedError, match="nvidia-smi topo"):
        World.local(2, executor="gpu")


def test_everything_is_freed(stub):
    def main(world):
        world.symmetric((4, 4)), world.counters("x", 3)
        with world.symmetric((8, 8)):
            pass
        world.split([0, 1]).symmetric((2, 2))

    world = World.local(2, executor="gpu")
    world.run(main)
    world.close()
    assert stub.live() == 0 and len(stub.log("cuMemFreeHost")) == 4 and len(stub.log("cuStreamDestroy_v2")) == 2


def test_peers_tables(stub):
    def main(world):
        a = world.symmetric((4, 4))
        table = np.frombuffer(driver.copy_out(a.peers_table, 8 * world.size), "u8").tolist()
        assert table == a.pointers and table[world.rank] == a.pointer
        assert np.frombuffer(driver.copy_out(world.abort_table, 16), "u8")[world.rank] == world.abort_word
        assert driver.copy_out(world.abort_word, 4) == bytes(4)
        return table

    with World.local(2, executor="gpu") as world:
        first, second = world.run(main)
        assert first == second


def test_one_rank_without_memory_fails_all(stub):
    def main(world):
        world.barrier()
        if world.rank == 0:
            stub.fail("cuMemAlloc_v2", 2)
        world.barrier()
        with pytest.raises(DriverError, match="World.symmetric.* on rank .*OUT_OF_MEMORY"):
            world.symmetric((8, 8))
        return world.symmetric((8, 8)).local.shape

    with World.local(3, executor="gpu") as world:
        assert world.run(main) == [(8, 8)] * 3
    assert stub.live() == 0


def test_a_failing_thread_frees_the_others(stub):
    def main(world):
        if world.rank == 2:
            raise KeyError("mine")
        world.barrier()

    world = World.local(3, executor="gpu")
    started = time.monotonic()
    with pytest.raises(KeyError, match="mine"):
        world.run(main)
    assert time.monotonic() - started < 5
    assert stub.log("cuMemsetD32Async").count("cuMemsetD32Async 3 1") == 3  # every abort word says: rank 2
    world.close()
    assert stub.live() == 0


def test_a_thread_that_does_not_come_is_a_hang(stub):
    release = threading.Event()

    def main(world):
        if world.rank == 1:
            release.wait(5)
        else:
            try:
                world.barrier()
            finally:
                release.set()

    with pytest.raises(HangError, match="rank 0 has waited 0.2 s for rank 1 in barrier"):
        World.local(2, executor="gpu", host_limit_s=0.2).run(main)


def test_dropped_worlds_run_no_collectives(stub):
    world = World.local(1, executor="gpu")
    world.symmetric((4, 4))
    del world
    gc.collect()
    assert stub.live() == 0
    World.local(3, executor="gpu").run(lambda world: world.symmetric((4, 4)) and None)
    gc.collect()
    assert stub.live() == 0


def test_asarray_and_interfaces(stub):
    with World.local(1, executor="gpu") as world:
        x = world.asarray(np.ones((2, 3), ml_dtypes.bfloat16))
        assert x.dtype == "bfloat16" and x.get().sum() == 6 and world.asarray(x) is x
        a = world.symmetric((2, 3))
        assert a.__cuda_array_interface__["data"][0] == a.pointer and a.__dlpack_device__() == (2, 0)
        assert world.stream_of(5) == 5 and world.stream_of() == 0
