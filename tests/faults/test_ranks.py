"""A rank of an MPI job dies, raises, is interrupted or calls something else: every other rank gets an error that names it, soon."""

import re
import signal

import pytest


def errors(done):
    """{rank: "Type: first line" of the error it got}."""
    return dict((int(rank), text) for rank, text in re.findall(r"rank (\d) got (.*)", done.text))


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_killed(job, when):
    """SIGKILL before a collective, inside its kernel, and after it: the others name the rank and its process."""
    done = job(3, f"""
    when = {when!r}

    class Deadly(GemmAllReduce):
        @staticmethod
        def storer(cfg, g, s, task):
            if g.rank == 1:
                die()
            GemmAllReduce.storer(cfg, g, s, task)

    def call():
        for kernel in (GemmAllReduce, Deadly if when == "during" else GemmAllReduce):
            if world.rank == 1 and (when == "before" or when == "after" and kernel is not Deadly and calls):
                die()
            calls.append(multiply(kernel, world, *arrays(world), out=None, config=None, stream=None))

    from pknumba.templates import multiply
    calls, world = [], World.mpi(executor="interpreter")
    shared()
    tell(call)
    """)
    assert done.status != 0 and done.seconds < 30, done
    found = errors(done)
    assert found and set(found) <= {0, 2}, done.text    # on a busy machine the launcher's SIGTERM may be before one of them
    for text in found.values():
        assert re.match(r"WorldError: World: rank 1 is gone: its process \d+ has ended", text), done.text


def test_raises_in_its_kernel_or_its_program(job):
    """The first error is the rank's own; the others' names it, in a kernel, in host code, and where they come later."""
    done = job(3, """
    def main(world):
        if world.rank == 1:
            raise KeyError("no such layer")
        if world.rank == 2:
            time.sleep(0.5)
        return tell(lambda: gemm_all_reduce(world, *arrays(world)))

    world = World.mpi(executor="interpreter")
    shared()
    world.run(main)
    """)
    assert done.status != 0 and done.text.count("KeyError: 'no such layer'") >= 1, done.text
    for rank in (0, 2):
        assert re.match(r"WorldError: World: rank 1 failed: KeyError: 'no such layer'", errors(done)[rank]), done.text
    assert done.seconds < 30


@pytest.mark.parametrize("how", ["with", "bare"])
def test_raises_on_the_stand_in_for_gpus(job, stub_library, how):  # noqa: F811
    """The same without the interpreter's page: by messages between hosts."""
    done = job(3, f"""
    def body(world):
        world.symmetric((4, 4))
        if world.rank == 2:
            raise ValueError("mine")
        tell(lambda: world.symmetric((8, 8)))

    world = World.mpi(executor="gpu", host_limit_s=20)
    shared()
    if {how!r} == "with":
        with world:
            body(world)
    else:
        body(world)
    """, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore"})
    assert done.status != 0 and done.seconds < 30, done
    for rank in (0, 1):
        assert re.match(r"WorldError: World: rank 2 failed: .*ValueError: mine", errors(done)[rank]), done.text


def test_leaves_without_a_word(job, stub_library):  # noqa: F811
    """A program that ends before the others have finished with it."""
    done = job(2, """
    world = World.mpi(executor="gpu", host_limit_s=20)
    shared()
    if world.rank == 1:
        sys.exit(0)
    tell(world.barrier)
    """, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore"})
    assert "WorldError: World: rank 1 is gone: its program ended, and did not close the world" in errors(done)[0], done.text
    assert done.seconds < 30


def test_ctrl_c_in_one_rank(job):
    """KeyboardInterrupt in a wait of one rank is its own; the others are told."""
    done = job(3, """
    world = World.mpi(executor="interpreter")
    shared()
    if world.rank == 1:
        import threading
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    if world.rank == 2:
        time.sleep(1.5)
    with world:
        tell(lambda: gemm_all_reduce(world, *arrays(world)))
    """)
    found = errors(done)
    assert done.status != 0 and 1 in found, done.text
    assert found[1].startswith("KeyboardInterrupt"), done.text
    for rank in (0, 2):
        assert re.match("WorldError: World: rank 1 failed: .*KeyboardInterrupt", found[rank]), done.text
    assert done.seconds < 30


def test_ctrl_c_for_the_whole_job(job):
    """The launcher ends everything at once, and nothing is left."""
    done = job(2, """
    world = World.mpi(executor="interpreter")
    shared()
    say("waiting")
    if world.rank == 0:
        time.sleep(60)
    world.barrier()
    """, interrupt=("waiting", signal.SIGINT))
    assert done.status != 0 and done.seconds < 30


def test_calls_something_else(job):
    """Another shape, dtype, configuration or operator on one rank: the same typed error on all, and the world goes on."""
    done = job(3, """
    from pknumba import GemmAllReduceConfig, all_reduce, gemm_reduce_scatter
    world = World.mpi(executor="interpreter")
    shared()
    A, B = arrays(world)
    odd = world.rank == 1
    small = GemmAllReduceConfig(tile_m=64, tile_n=64, consumers=1, comm_sms=1)
    cases = {
        ShapeError: lambda: gemm_all_reduce(world, A[:16] if odd else A, B),
        DTypeError: lambda: gemm_all_reduce(world, *((x.astype(np.float16) for x in (A, B)) if odd else (A, B))),
        ConfigError: lambda: gemm_all_reduce(world, A, B, config=small if odd else small.replace(stages=3)),
        WorldError: lambda: (all_reduce(world, A) if odd else gemm_all_reduce(world, A, B))}
    for kind, call in cases.items():
        try:
            call()
        except kind as error:
            assert "rank 1" in str(error) and "ranks 0 and 2" in str(error), error
            say("right", kind.__name__, world.rank)
    C = gemm_all_reduce(world, A, B)
    say("sum", float(np.asarray(C, np.float32).sum()))
    world.close()
    """)
    assert done.status == 0, done.text
    for kind in ("ShapeError", "DTypeError", "ConfigError", "WorldError"):
        assert done.text.count(f"right {kind}") == 3, done.text
    assert len(set(re.findall(r"sum (\S+)", done.text))) == 1
