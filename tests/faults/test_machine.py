"""What the machine refuses: memory, mappings, devices; interrupts in one process; and that many worlds leave nothing behind."""

import gc
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from pknumba.errors import ConfigError
from pknumba.runtime import World

from .conftest import PRELUDE, environment


def test_no_room_in_shared_memory(job):
    """A limit on the size of files stands for a full /dev/shm: every rank is told, and the world goes on."""
    done = job(2, """
    import resource
    world = World.mpi(executor="interpreter")
    shared()
    if world.rank == 0:                                 # the one that makes the file
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    try:
        world.symmetric((1024, 1024), "float32")
    except WorldError as error:
        say("told", world.rank, error)
    assert world.symmetric((4, 4)).local.shape == (4, 4)
    world.close()
    """)
    assert done.status == 0, done.text
    for rank in (0, 1):
        assert f"told {rank} World: 8388608 bytes of shared memory: File too large" in done.text, done.text


def test_mapping_refused(job, stub_library):  # noqa: F811
    """One rank may not export its memory, may not open a peer's, or has none: every rank gets that rank's error; nothing stays."""
    done = job(3, """
    import ctypes
    from pknumba.runtime import libcuda
    world = World.mpi(executor="gpu")
    shared()
    stub = ctypes.CDLL(libcuda.LIBRARY)
    before = stub.stub_live()
    for function, code in ((b"cuIpcGetMemHandle", 801), (b"cuIpcOpenMemHandle_v2", 800), (b"cuMemAlloc_v2", 2)):
        if world.rank == 1:
            stub.stub_fail(function, code)
        try:
            world.symmetric((4, 4))
        except PknumbaError as error:
            assert str(error).startswith("World.symmetric(4, 4) on rank 1: "), error
            say("told", type(error).__name__, error)
        assert stub.stub_live() == before
        world.symmetric((4, 4)).close()
    world.close()
    """, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore"})
    assert done.status == 0, done.text
    for kind, says in (("UnsupportedError", "This device or driver cannot do it"), ("UnsupportedError", "--ipc=host"),
                       ("DriverError", "memory is full")):
        assert sum(line.startswith(f"told {kind}") and says in line for line in done.text.splitlines()) == 3, done.text


def test_visible_devices(job, stub_library):  # noqa: F811
    """What CUDA_VISIBLE_DEVICES may be: a device for each rank, all (or all reversed), the same one for all, fewer than ranks."""
    done = job(3, """
    from pknumba.runtime import driver, libcuda
    for devices, first in ((1, os.environ["OMPI_COMM_WORLD_RANK"]), (3, 0), (1, 0), (2, 0)):
        libcuda.unload(), driver._contexts.clear(), driver._infos.clear()
        os.environ.update(STUB_DEVICES=str(devices), STUB_FIRST=str(first))
        with World.mpi(executor="gpu") as world:
            world.symmetric((4, 4))
            seen = world.allgather((world.device, int(world.crowded)))
            if world.rank == 0:
                say("devices", *(d for d, _ in seen), "crowded", *(c for _, c in seen))
    """, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore"})
    assert re.findall("devices ([0-9 ]+) crowded ([0-9 ]+)", done.text) == [
        ("0 0 0", "0 0 0"), ("0 1 2", "0 0 0"), ("0 0 0", "1 1 1"), ("0 1 0", "1 0 1")], done.text


def test_a_device_that_is_not_there(stub):  # noqa: F811
    with pytest.raises(ConfigError, match="World: device = 7. 1 device is visible"):
        World.local(1, executor="gpu", device=7)


def script(source, **env):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(source)], env=environment(**env), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("executor", ["interpreter", "gpu"])
def test_ctrl_c_in_a_local_world(stub_library, executor):  # noqa: F811
    """KeyboardInterrupt leaves run at once; the world is broken, the ranks' threads have ended, and a new world works."""
    process = script(f"""
    import threading
    def main(world):
        if world.rank == 0:
            say("waiting")
            for _ in range(600):
                time.sleep(0.1 if {executor!r} == "interpreter" or not world._link.hub.failed else 0)
        world.barrier()

    world = World.local(3, executor={executor!r})
    try:
        world.run(main)
    except KeyboardInterrupt:
        time.sleep(0.2)
        say("interrupted", [t.name for t in threading.enumerate() if t.name.startswith("rank ")])
    try:
        world.run(main)
    except WorldError as error:
        say("then:", error)
    world.close()
    say(World.local(2, executor={executor!r}).run(lambda world: world.allgather(world.rank)))
    """, PKNUMBA_LIBCUDA=stub_library)
    start = time.monotonic()
    text = process.stdout.readline()
    assert text == "waiting\n"
    process.send_signal(signal.SIGINT)
    try:
        rest = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    assert "interrupted []" in rest and "then: World: broken (KeyboardInterrupt in run)" in rest and "[[0, 1], [0, 1]]" in rest, rest
    assert time.monotonic() - start < 10


def test_two_jobs_at_once(job):
    """Two jobs of one user on one node, started together: neither sees the other's memory, files or names."""
    source = """
    with World.mpi(executor="interpreter") as world:
        shared()
        for _ in range(3):
            C = gemm_all_reduce(world, *arrays(world))
        say("sum", float(np.asarray(C, np.float32).sum()))
    """
    done, other = [], threading.Thread(target=lambda: done.append(_second(source)))
    other.start()
    done.append(job(2, source))
    other.join()
    assert len(done) == 2 and all(d.status == 0 for d in done), done
    assert len({line for d in done for line in d.text.splitlines() if line.startswith("sum")}) == 1
    assert not done[0].shared & done[1].shared and all(d.shared for d in done)


def _second(source):
    import tempfile

    from .conftest import Job
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "second.py")
        with open(path, "w") as file:
            file.write(textwrap.dedent(PRELUDE) + textwrap.dedent(source))
        command = os.path.join(os.path.dirname(sys.executable), "mpirun")
        done = subprocess.run([command, "-n", "2", sys.executable, path], env=environment(), capture_output=True, text=True, timeout=60)
        return Job(done.stdout + done.stderr, done.returncode, 0, {w for w in done.stdout.split() if w.startswith("/dev/shm/")})


def held():
    """(resident kilobytes, descriptors, mappings) of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize() // 1024
    with open("/proc/self/maps") as file:
        return resident, len(os.listdir("/proc/self/fd")), len(file.readlines())


def use(world):
    a, c = world.symmetric((16, 16)), world.counters("n", 4)
    world.barrier()
    return a.shape, c.n


@pytest.mark.parametrize("executor", ["interpreter", "gpu"])
def test_a_thousand_local_worlds(executor, request):
    """Nothing grows: resident memory, descriptors, mappings, allocations of the (stand-in for the) device."""
    if executor == "gpu":
        stand_in = request.getfixturevalue("stub")
    seen = []
    for number in range(1, 1001):
        with World.local(2, executor=executor) as world:
            world.run(use)
        if number in (200, 1000):
            seen.append(held())
    (m0, f0, n0), (m1, f1, n1) = seen
    # the C library maps and unmaps room for threads as they come to run at once: a few, where a leak of worlds would be hundreds
    assert m1 - m0 < 4096 and f1 <= f0 and n1 <= n0 + 40, seen
    if executor == "gpu":
        assert stand_in.live() == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("rank ")]


#: Worlds of processes that are made and closed: a thousand take minutes on two busy cores, so only where PKNUMBA_SOAK asks for it.
WORLDS = int(os.environ.get("PKNUMBA_SOAK", "60"))


@pytest.mark.parametrize("executor", ["interpreter", "gpu"])
def test_many_worlds_of_processes(job, stub_library, executor):  # noqa: F811
    """The same for MPI ranks, shared memory and threads too. PKNUMBA_SOAK=1000 makes a thousand."""
    done = job(2, f"""
    import gc, threading
    def held():
        gc.collect()
        resident = int(open("/proc/self/statm").read().split()[1]) * 4
        maps = open("/proc/self/maps").readlines()
        return resident, len(os.listdir("/proc/self/fd")), len(maps), sum("/dev/shm" in line for line in maps), threading.active_count()

    seen = []
    for number in range({WORLDS}):
        with World.mpi(executor={executor!r}) as world:
            world.symmetric((16, 16)), world.counters("n", 4)
        del world
        if number in ({WORLDS // 3}, {WORLDS - 1}):
            seen.append(held())
    shared()
    first, last = seen
    assert last[0] - first[0] < 8192 and all(b <= a for a, b in zip(first[1:2] + first[3:], last[1:2] + last[3:])), seen
    assert last[2] <= first[2] + 8, seen
    say("level", *first, *last)
    """, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore"}, limit_s=300)
    assert done.status == 0 and done.text.count("level") == 2, done.text
