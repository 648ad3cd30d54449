"""Rows of the table of faults that need a real GPU. Ranks are processes that share one card, in turns."""

import os
import re

import pytest

from pknumba.runtime import World, driver

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]
QUIET = {"PYTHONWARNINGS": "ignore"}
#: How late a rank comes, in seconds; a device waits for a third of it. The issue's 20 where PKNUMBA_LATE_S says so.
LATE = float(os.environ.get("PKNUMBA_LATE_S", "6"))

COMMON = """
    from pknumba.runtime import driver
    def product(world, k=48):
        A, B = (world.asarray(x) for x in arrays(world, k))
        C = gemm_all_reduce(world, A, B)
        world.synchronize()
        C = C.get() if hasattr(C, "get") else C
        return float(np.asarray(C).view(ml_dtypes.bfloat16).astype(np.float32).sum())
"""


def errors(done):
    return dict((int(rank), text) for rank, text in re.findall(r"rank (\d) got (.*)", done.text))


@pytest.mark.parametrize("when", ["host", "device"])
def test_killed_while_others_wait(job, when):
    """Rank 1 dies while rank 0 waits for it on the host, or in its kernel for a signal that will not come."""
    done = job(2, COMMON + f"""
    world = World.mpi(executor="gpu", wait_limit_s=60)
    shared()
    A, B = (world.asarray(x) for x in arrays(world))
    C = world.symmetric((24, 40))
    gemm_all_reduce(world, A, B, out=C)
    world.synchronize()
    world.barrier()
    if world.rank == 1:
        time.sleep(1)
        die()
    if {when!r} == "device":                            # a repeated call agrees on nothing: only the kernel waits
        tell(lambda: (gemm_all_reduce(world, A, B, out=C), world.synchronize()))
    tell(lambda: product(world, 64))
    """, QUIET)
    said = errors(done).get(0, "")
    assert done.status != 0 and done.seconds < 30, done
    assert re.match(r"(WorldError: World: rank 1 is gone: its process \d+ has ended|HangError: .*when rank 1 had failed or given up)",
                    said), done.text


def test_hang_of_processes(job):
    """Nobody is told that rank 1's tiles are written: both ranks name block, role, line, counter, expected and seen."""
    done = job(2, COMMON + """
    from pknumba import Gemm
    from pknumba.primitives import signal, store_async_wait
    from pknumba.templates import multiply

    class Silent(GemmAllReduce):
        @staticmethod
        def storer(cfg, g, s, task):
            Gemm.storer(cfg, g, s, task)
            store_async_wait(0)
            if g.rank != 1:
                signal(g.done, task.id, task.owner)

    world = World.mpi(executor="gpu", wait_limit_s=2)
    shared()
    A, B = (world.asarray(np.ones(shape, ml_dtypes.bfloat16)) for shape in ((512, 64), (64, 512)))
    tell(lambda: (multiply(Silent, world, A, B, out=None, config=None, stream=None), world.synchronize()))
    """, QUIET)
    assert done.status != 0 and done.seconds < 60, done
    for rank, text in errors(done).items():
        assert re.match(rf"HangError: World: Silent: rank {rank} block \d+ communicator at (gemm_all_reduce|drivers).py:\d+ waits for "
                        r"counter (done|finished)\[\d+\]: expected \d+, seen \d+", text), done.text
    assert set(errors(done)) == {0, 1}, done.text


def test_late_with_an_empty_cache(job, tmp_path):
    """A rank that comes late and compiles first: nobody's device waits meanwhile, and the result is right."""
    done = job(2, COMMON + f"""
    world = World.mpi(executor="gpu", wait_limit_s={LATE / 3})
    shared()
    if world.rank == 1:
        time.sleep({LATE})
    say("sum", tell(lambda: product(world)))
    world.close()
    """, {**QUIET, "PKNUMBA_CACHE_DIR": str(tmp_path / "cache")}, limit_s=60 + LATE)
    assert done.status == 0, done.text
    first, second = re.findall(r"sum (\S+)", done.text)
    assert first == second


def test_eight_processes_on_an_empty_cache(job, tmp_path):
    folder = tmp_path / "cache"
    done = job(8, COMMON + """
    with World.mpi(executor="gpu", wait_limit_s=60) as world:
        shared()
        say("sum", product(world))
    """, {**QUIET, "PKNUMBA_CACHE_DIR": str(folder)}, limit_s=120)
    assert done.status == 0 and len(set(re.findall(r"sum (\S+)", done.text))) == 1, done.text
    assert all(name.endswith(".kernel") for name in os.listdir(folder)), "nothing half written is left"


def test_another_shape_on_one_rank(job):
    done = job(2, COMMON + """
    with World.mpi(executor="gpu", wait_limit_s=20) as world:
        shared()
        try:
            product(world, 48 if world.rank else 64)
        except ShapeError as error:
            say("right", error)
        say("sum", product(world))
    """, QUIET)
    assert done.status == 0 and done.text.count("right GemmAllReduce: A.shape is") == 2, done.text


def test_more_ranks_than_devices_that_are_visible(job):
    """CUDA_VISIBLE_DEVICES names one: all ranks share it, and are told so once."""
    done = job(3, COMMON + """
    with World.mpi(executor="gpu", wait_limit_s=60) as world:
        shared()
        assert world.device == 0 and world.crowded
        say("sum", product(world))
    """, {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0], "PYTHONWARNINGS": "default"})
    assert done.status == 0 and len(set(re.findall(r"sum (\S+)", done.text))) == 1, done.text
    assert done.text.count("ranks share") == 1


#: What makes something on a device, and what gives it back.
PAIRS = {"cuMemAlloc_v2": "cuMemFree_v2", "cuMemHostAlloc": "cuMemFreeHost", "cuStreamCreate": "cuStreamDestroy_v2",
         "cuEventCreate": "cuEventDestroy_v2", "cuModuleLoadData": "cuModuleUnload"}


def test_a_thousand_worlds_return_their_memory(monkeypatch):
    """After 100 worlds and after 1,000: what the driver was asked for and not given back, descriptors, mappings; and free memory, which
    tells something only on a card that nobody else uses (PKNUMBA_ALONE=1)."""
    import gc
    from collections import Counter

    from pknumba.runtime import function
    seen, alive, made, backs = [], Counter(), Counter(), {back: make for make, back in PAIRS.items()}

    def call(name, *args, **more):
        result = driver_call(name, *args, **more)
        alive[backs.get(name, name)] += -1 if name in backs else name in PAIRS
        made[name] += name in PAIRS
        return result

    def use(world):
        world.symmetric((64, 64)), world.counters("n", 16)
        world.barrier()

    driver_call = driver.call
    for module in (driver, function):
        monkeypatch.setattr(module, "call", call)
    for number in range(1, 1001):
        with World.local(2, executor="gpu") as world:
            world.run(use)
        if number in (100, 1000):
            gc.collect()
            with open("/proc/self/maps") as maps:
                mappings = len(maps.readlines())
            with driver.using(0):
                seen.append((driver.memory_info()[0], len(os.listdir("/proc/self/fd")), mappings, {n: alive[n] for n in PAIRS}))
    print("free, descriptors, mappings, alive:", seen)
    (free, files, mappings, kept), last = seen
    assert made["cuMemAlloc_v2"] >= 4000 and made["cuMemHostAlloc"] and made["cuStreamCreate"], made
    assert last[1] <= files and last[2] <= mappings + 40 and last[3] == kept, seen
    if os.environ.get("PKNUMBA_ALONE", "0") == "1":
        assert free - last[0] <= 4 << 20, seen
