"""The engines: which is chosen, and that device memory arrives, through a stand-in for libcuda whose memory is the host's."""

from pathlib import Path

import pytest

from ..runtime.conftest import mpirun, stub_library  # noqa: F401 - fixtures

PROGRAM = """
    import ctypes, os, sys
    import numpy as np
    from pknumba.runtime import DeviceArray, World
    from pknumba.runtime.nodes import over_mpi
    from pknumba import errors
    def say(*words):
        sys.stdout.write(" ".join(map(str, words)) + "\\n"); sys.stdout.flush()
    def send_and_receive(world, n, label):
        "Ranks send to the two of the other node, in two messages to one of them."
        engine, us, there = world.across.engine, world.layout.groups[world.here[0]], world.layout.groups[1 - world.here[0]]
        def made(rank, part): return np.arange(n, dtype=np.float32) + 100 * rank + 10 * part
        sends = [(r, DeviceArray.of(made(world.rank, part), world.device)) for part, r in enumerate((*there, there[0]))]
        parts = (0, 2) if world.rank == us[0] else (1,)
        receives = [(r, part, DeviceArray.empty((n,), "float32", world.device)) for r in there for part in parts]
        before = engine.sent
        engine.wait(engine.start(sends, [(r, array) for r, _, array in receives], label))
        for r, part, array in receives:
            assert np.array_equal(array.get(), made(r, part)), (world, r, part)
        assert engine.sent - before == 3 * 4 * n
"""


@pytest.fixture
def gpus(mpirun, stub_library):  # noqa: F811
    def run(n, source, env=None, **options):
        return mpirun(n, PROGRAM + source, {"PKNUMBA_LIBCUDA": stub_library, "PYTHONWARNINGS": "ignore", **(env or {})}, **options)
    return run


#: In which nccl4py is found: a stand-in, whose messages are MPI's; NCCL wants a GPU for each rank.
NCCL = {"STAND_IN": str(Path(__file__).with_name("stand_in")), "STUB_DEVICES": "4"}


@pytest.mark.parametrize("engine", ["mpi", "cuda-mpi", "nccl"])
def test_device_memory_arrives(gpus, engine):
    """Several pieces to a message, odd sizes, nothing at all; pinned memory is used again."""
    out = gpus(4, f"""
    sys.path.insert(0, os.environ["STAND_IN"])
    over_mpi.PIECE = 4096
    over_mpi.is_cuda_aware = lambda mpi: True        # the stand-in's device memory is memory of the host
    with World.mpi(executor="gpu", node_size=2, engine="{engine}", host_limit_s=20) as world:
        assert type(world.across.engine).__name__ == {{"mpi": "Staged", "cuda-mpi": "CudaAware", "nccl": "NcclEngine"}}["{engine}"]
        for i, n in enumerate((1, 1000, 5000, 0, 5000, 1024)):
            send_and_receive(world, n, f"call {{i}}")
        if world.across.engine.name == "mpi":
            assert [len(blocks) for blocks in world.across.engine.free.values()] == [5 if world.rank % 2 else 7] * 2
    say("fine", world)
    """, NCCL)
    assert out.count("fine") == 4


@pytest.mark.parametrize("engine", ["mpi", "nccl"])
def test_a_missing_rank_is_named_with_its_node(gpus, engine):
    """Rank 3 does not come, rank 2 needs nobody; both wait for the others to say so. NCCL knows only whom a group is with."""
    named = {"mpi": "rank 3", "nccl": "ranks 2 and 3"}[engine]
    out = gpus(4, f"    engine, named = {engine!r}, {named!r}" + """
    sys.path.insert(0, os.environ["STAND_IN"])
    import time
    from pathlib import Path
    world, until = World.mpi(executor="gpu", node_size=2, engine=engine, host_limit_s=1), time.monotonic() + 20
    told = [Path(__file__).with_name(f"told-{rank}") for rank in range(2)]
    try:
        if world.rank < 3:
            send_and_receive(world, 100, "the test")
            say("rank", world.rank, "was not waiting")
        while time.monotonic() < until and not all(path.exists() for path in told):
            time.sleep(0.05)
    except errors.HangError as error:
        say("hang:", error)
        assert named in str(error) and error.nodes == [world.layout.names[1]], error
        world._break(error.report, error)               # as operators do
        told[world.rank].touch()
    world._break("test"); world.close()
    """, NCCL)
    assert out.count(f"has waited 1 s for {named} on node") == 2 and out.count("was not waiting") == 1


def test_the_best_engine_is_taken(gpus):
    """Without NCCL and without a CUDA-aware MPI it is plain MPI; what cannot be had is refused on every rank."""
    out = gpus(2, """
    with World.mpi(executor="gpu", node_size=1) as world:
        say("auto:", type(world.across.engine).__name__)
    for engine in ("nccl", "cuda-mpi"):
        try:
            World.mpi(executor="gpu", node_size=1, engine=engine)
        except errors.UnsupportedError as error:
            say("refused:", error)
    try:
        World.mpi(executor="gpu", node_size=1, engine=["mpi", "nccl"][int(os.environ["OMPI_COMM_WORLD_RANK"])])
    except errors.WorldError as error:
        say("differs:", error)
    """)
    assert out.count("auto: Staged") == 2 and out.count("refused: World: engine nccl. It needs nccl4py") == 2
    assert out.count("refused: World: engine cuda-mpi. This MPI library says") == 2
    assert out.count("differs: World.mpi: engine is mpi on rank 0 on ") == 2


def test_ranks_that_cannot_map_each_other_are_nodes(gpus):
    """Three ranks on one host, of which one's memory cannot be mapped: two nodes."""
    out = gpus(3, """
    from pknumba.runtime import driver
    handle = driver.ipc_export
    if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
        def refused(pointer):
            raise errors.UnsupportedError("symmetric memory: no. Never. Give up.")
        driver.ipc_export = refused
    world = World.mpi(executor="gpu")
    driver.ipc_export = handle
    say("node of", world.rank, "is", world.layout.groups[world.here[0]])
    world.close()
    """)
    assert {"node of 0 is (0, 1)", "node of 1 is (0, 1)", "node of 2 is (2,)"} <= set(out.splitlines())


def test_ucx_with_cuda_is_noticed(tmp_path):
    """Only where Open MPI was told to use UCX, and UCX has its transports for device memory."""
    from pknumba.runtime.nodes.over_mpi import _through_ucx
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 fd:00 1  /site/libucx/lib/libuct.so.0\n")
    assert not _through_ucx({"OMPI_MCA_pml": "ucx"}, maps)
    maps.write_text(maps.read_text() + "7f02-7f03 r-xp 0 fd:00 2  /site/libucx/lib/ucx/libuct_cuda.so.0\n")
    assert _through_ucx({"OMPI_MCA_pml": "ucx"}, maps) and not _through_ucx({}, maps) and not _through_ucx({"OMPI_MCA_pml": "ob1"}, maps)


def test_engines_of_this_machine():
    from pknumba.runtime.nodes import engines
    found = engines()
    assert [name for name, *_ in found] == ["nccl", "cuda-mpi", "mpi"] and all(isinstance(text, str) and text for *_, text in found)
    assert found[2][1]
