"""What a call does on a GPU, on a stand-in for the driver that logs every call: what is packed, copied, launched, and how often."""

import ml_dtypes
import numpy as np
import pytest

from pknumba import World, config, gemm, gemm_all_reduce, gemm_reduce_scatter
from pknumba.config import GemmConfig
from pknumba.errors import ConfigError, DriverError, DTypeError, HangError, LayoutError, ShapeError, WorldError
from pknumba.lowering import cache
from pknumba.runtime import DeviceArray, hang
from pknumba.runtime.function import Function
from pknumba.templates import agreement
from pknumba.templates.call import Matrix, _tensor

from ..runtime.conftest import stub, stub_library  # noqa: F401 - fixtures

BF16 = np.dtype(ml_dtypes.bfloat16)
WORK = ("cuLaunchKernelEx", "cuMemcpy2DAsync_v2", "cuMemsetD8Async")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Nothing is compiled: a record such as the compiler's, and a list of the configurations that were asked for."""
    asked = []

    def compiled(kernel, cfg, make_plan):
        asked.append(cfg)
        panel = cfg.panel_n
        b = [cfg.tile_n, 64, 128] if cfg.b_transposed else [cfg.tile_k, panel, cfg.b_swizzle]
        c = [cfg.part_m * cfg.parts, panel, cfg.c_swizzle]
        boxes = {"A": [[cfg.part_m * cfg.parts, 64, 128]], "B": [b], "C": [c], "out": [c]}
        return b"\x7fELF", dict(symbol="k", threads=128 * (cfg.consumers + 1), boxes=boxes, peer_boxes={},
                                semaphores={"ab_full": [0, cfg.stages]}, counters=list(kernel.all_counters()))
    monkeypatch.setattr(cache, "compiled", compiled)
    return asked


@pytest.fixture
def world(stub):  # noqa: F811
    with World.local(1, executor="gpu") as world:
        yield world


def array(*shape, dtype=BF16, pitch=None):
    """Device memory of that shape; rows ``pitch`` elements apart."""
    if pitch is None:
        return DeviceArray.of(np.ones(shape, dtype))
    whole = DeviceArray.of(np.ones((shape[0], pitch), dtype))
    return DeviceArray(whole.pointer, shape, whole.dtype, whole.device, (pitch * 2, 2), owner=whole)


def transposed(x):
    return DeviceArray(x.pointer, x.shape[::-1], x.dtype, x.device, x.strides[::-1], owner=x)


def fields(line):
    """"cuLaunchKernelEx grid 35,1,1 block ..." as {"grid": "35,1,1", ...}."""
    words = line.split()[1:]
    return dict(zip(words[::2], words[1::2]))


def test_maps_of_peers_by_rows_or_by_rows_and_columns(world, stub):  # noqa: F811
    """A target that says no columns has the matrix's."""
    x = DeviceArray.of(np.zeros((64, 64), BF16))
    record = {"peer_boxes": {"X": [[8, 16, 32]]}, "boxes": {}}
    for targets, dims in ((((x.pointer, 8),), "64,8"), (((x.pointer, 8, 32),), "32,8")):
        stub.clear()
        _tensor(world, "X", Matrix(x.pointer, 64, 64, 128, "bfloat16", targets=targets), record)
        line, = stub.log("cuTensorMapEncodeTiled")
        assert f"dims {dims} " in line, line


def test_a_repeated_call_only_launches(world, stub):  # noqa: F811
    a, b, c = array(300, 200), array(200, 400), array(300, 400)
    stub.clear()
    gemm(world, a, b, out=c)
    assert len(stub.log("cuTensorMapEncodeTiled")) == 3 and len(stub.log(*WORK)) == 1
    for _ in range(3):
        stub.clear()
        assert gemm(world, a, b, out=c) is c
        assert [line.split()[0] for line in stub.log()] == ["cuLaunchKernelEx"]
    stub.clear()
    gemm(world, a, b, out=array(300, 400))                   # another result: packed anew, the kernel stays loaded
    assert len(stub.log("cuTensorMapEncodeTiled")) == 3 and not stub.log("cuModuleLoadData")


def test_processes_that_share_a_card_launch_graphs(world, stub):  # noqa: F811
    """Under MPS they cost the host less, from the third time on; what goes into a graph of the user's is launched as it is."""
    world.sharing = True
    a, b, c = array(300, 200), array(200, 400), array(300, 400)
    for launched in (["cuLaunchKernelEx"], ["cuLaunchKernelEx"], None, ["cuGraphLaunch"], ["cuGraphLaunch"]):
        stub.clear()
        assert gemm(world, a, b, out=c) is c
        if launched:
            assert [line.split()[0] for line in stub.log(*WORK, "cuGraphLaunch")] == launched


@pytest.mark.parametrize("shape, grid", [((1200, 4000), 132), ((300, 400), 4 * 4), ((100, 200), 2 * 2)])
def test_clusters(world, stub, shape, grid):  # noqa: F811
    """As many blocks as there are resident clusters and pairs of tiles; the launch says how many blocks a cluster has."""
    gemm(world, array(shape[0], 64), array(64, shape[1]), out=array(*shape), config=GemmConfig(cluster=2, tile_n=128))
    assert len(stub.log("cuOccupancyMaxActiveClusters")) == 1
    line, = stub.log("cuLaunchKernelEx")
    assert fields(line)["grid"] == f"{min(grid, world.num_sms // 2 * 2)},1,1" and "attr4=2,1,1" in line


def test_no_room_for_a_cluster(world, monkeypatch):
    """As for a rank that has a few SMs of many groups."""
    monkeypatch.setattr(Function, "clusters", lambda self, threads, shared_bytes, size: 0)
    with pytest.raises(ConfigError, match="cluster = 4, and this device has no room for one"):
        gemm(world, array(300, 64), array(64, 400), config=GemmConfig(cluster=4))


@pytest.mark.parametrize("b_by_columns", [False, True])
def test_tensor_maps(world, stub, b_by_columns):  # noqa: F811
    """Extents and pitches as the copy engine must know them: it clips at the extents."""
    a, c, cfg = array(300, 200, pitch=208), array(300, 400, pitch=512), GemmConfig()
    b = transposed(array(400, 200, pitch=256)) if b_by_columns else array(200, 400, pitch=408)
    stub.clear()
    gemm(world, a, b, out=c, config=cfg)
    dims = [(f["dims"], f["stride"], f["box"]) for f in map(fields, stub.log("cuTensorMapEncodeTiled"))]
    assert dims == [("200,300", "416", "64,128"), ("200,400", "512", "64,256") if b_by_columns else ("400,200", "816", "64,64"),
                    ("400,300", "1024", "64,128")]
    launch, = map(fields, stub.log("cuLaunchKernelEx"))
    assert launch["grid"] == f"{3 * 2},1,1" and launch["block"] == "384,1,1" and launch["align"] == "0"
    assert int(launch["shared"]) <= 232448 and not stub.log("cuMemcpy2DAsync_v2")


def test_rows_that_the_copy_engine_cannot_move(world, stub):  # noqa: F811
    """Rows that do not start on 16 bytes are copied before, and after."""
    a, b, c = array(30, 21), array(21, 41), array(30, 41)
    gemm(world, a, b, out=c)
    stub.clear()
    gemm(world, a, b, out=c)
    work = [line.split()[0] + " " + line.partition("<-")[2][2:] for line in stub.log(*WORK)]
    assert [w.split()[0] for w in work] == ["cuMemcpy2DAsync_v2", "cuMemcpy2DAsync_v2", "cuLaunchKernelEx", "cuMemcpy2DAsync_v2"]
    assert work[0].endswith("30 x 42 pitch 128<-42") and work[3].endswith("30 x 82 pitch 82<-128"), "rows begin on lines of L2"
    gemm(world, a, b, out=c)                                 # the third time: they are made one launch
    stub.clear()
    assert gemm(world, a, b, out=c) is c and [line.split()[0] for line in stub.log()] == ["cuGraphLaunch"]


@pytest.mark.parametrize("m, n, k, work", [(0, 5, 7, []), (5, 0, 7, []), (0, 0, 0, []),
                                           (16, 16, 0, ["cuMemsetD8Async", "cuMemsetD8Async", "cuLaunchKernelEx"])])
def test_empty(world, stub, m, n, k, work):  # noqa: F811
    a, b, c = array(m, k), array(k, n), array(m, n)
    stub.clear()
    assert gemm(world, a, b, out=c) is c
    assert [line.split()[0] for line in stub.log(*WORK)] == work


def test_result_is_made(world):
    c = gemm(world, array(30, 20), array(20, 40))
    assert isinstance(c, DeviceArray) and c.shape == (30, 40) and c.dtype == "bfloat16"


def test_packed_calls_are_forgotten(world, monkeypatch):
    monkeypatch.setattr(agreement, "_REMEMBERED", 20)
    a, b, keep = array(16, 16), array(16, 16), []
    for _ in range(60):
        keep.append(gemm(world, a, b))
    assert len(keep) == 60 and len(world.cache) <= 24


def test_configuration_of_the_launch(world, compiler, stub):  # noqa: F811
    """The device's SMs bound the grid; the arrays say dtype and layout; what the launch passes is not compiled in."""
    stub.clear()
    gemm(world, array(4096, 64, dtype=np.float16), transposed(array(4096, 64, dtype=np.float16)))
    assert compiler[-1].dtype == "float16" and compiler[-1].b_transposed
    assert fields(stub.log("cuLaunchKernelEx")[0])["grid"] == f"{world.num_sms},1,1"


@pytest.mark.parametrize("call, kind", [
    (lambda w: gemm(w, np.ones((16, 16), BF16), array(16, 16)), WorldError),
    (lambda w: gemm(w, array(16, 16), array(24, 16)), ShapeError),
    (lambda w: gemm(w, array(16, 16), array(16, 16), config=GemmConfig(stages=9)), ConfigError),
    (lambda w: gemm(w, transposed(array(16, 16)), array(16, 16)), LayoutError),
    (lambda w: gemm(w, array(16, 16), array(16, 16), out=transposed(array(16, 16))), LayoutError)])
def test_wrong_arguments_launch_nothing(world, stub, call, kind):  # noqa: F811
    stub.clear()
    with pytest.raises(kind):
        call(world)
    assert not [line for line in stub.log(*WORK) if "4<-1" not in line], "beyond the test's own copies from the host"


def test_a_refused_launch(world, stub):  # noqa: F811
    """The driver's error comes out typed; the next call works."""
    a, b, c = array(16, 16), array(16, 16), array(16, 16)
    gemm(world, a, b, out=c)
    stub.fail("cuLaunchKernelEx", 400)
    with pytest.raises(DriverError, match="INVALID_HANDLE"):
        gemm(world, a, b, out=c)
    gemm(world, a, b, out=c)


def test_a_repeated_call_still_looks(world, stub):  # noqa: F811
    """Another layout or dtype at the same place, a wait that gave up, a closed world: seen though the call is prepared."""
    a, b, c = array(16, 16), array(16, 16), array(16, 16)
    for _ in range(2):
        gemm(world, a, b, out=c)
    assert gemm(world, a, transposed(b), out=c) is c
    assert "stride 32" in stub.log("cuTensorMapEncodeTiled")[-1], "packed anew"
    with pytest.raises(DTypeError):
        gemm(world, a, DeviceArray(b.pointer, b.shape, "float16", b.device, owner=b), out=c)
    world._here.word.value = hang.MAGIC_VALUE
    stub.clear()
    with pytest.raises(HangError):
        gemm(world, a, b, out=c)
    with pytest.raises(WorldError, match="broken"):
        gemm(world, a, b, out=c)
    other = World.local(1, executor="gpu")
    gemm(other, a, b, out=c)
    other.close()
    stub.clear()
    with pytest.raises(WorldError, match="closed"):
        gemm(other, a, b, out=c)
    assert not stub.log(*WORK)


# ---- several ranks of this process

def test_a_closed_result_is_not_written(stub):  # noqa: F811
    """Nor is it taken for one that is made where it was."""
    def main(world):
        a, b = array(200, 64), array(64, 136)
        marks = []
        for _ in range(3):
            with world.symmetric((200, 136)) as out:
                for _ in range(2):
                    gemm_all_reduce(world, a, b, out=out)
                marks.append(out.mark)
            with pytest.raises(WorldError, match="closed"):
                gemm_all_reduce(world, a, b, out=out)
        return len(set(marks))

    with World.local(2, executor="gpu") as world:
        assert world.run(main) == [3, 3]


def test_all_reduce_of_two_ranks(stub, compiler):  # noqa: F811
    """Both launch; counters, context and scratch are made once; nobody waits in a repeated call."""
    def main(world):
        a, b = array(200, 64), array(64, 136)
        with_out, without = world.symmetric((200, 136)), []
        for _ in range(3):
            assert gemm_all_reduce(world, a, b, out=with_out) is with_out.local
            without.append(gemm_all_reduce(world, a, b))
        world.barrier()
        if world.rank == 0:
            stub.clear()
        world.barrier()
        gemm_all_reduce(world, a, b, out=with_out)
        world.barrier()
        log = [line for line in stub.log() if not line.startswith(("cuCtx", "cuMemFree"))]
        world.barrier()                                                 # before a rank ends, which waits for what it has launched
        return log, world.num_sms, without

    with World.local(2, executor="gpu") as world:
        (first, sms, _), (second, _, _) = world.run(main)
    assert [line.split()[0] for line in first] == ["cuLaunchKernelEx"] * 2 == [line.split()[0] for line in second]
    for line in first:
        assert "attr6" not in line, "no early start where ranks share a GPU"
        assert int(fields(line)["grid"].split(",")[0]) <= sms
    assert all(getattr(cfg, "comm_sms", 1) == 1 for cfg in compiler), "comm_sms is passed, not compiled"


def test_a_share_without_rows(stub, compiler):  # noqa: F811
    """Its rank takes part, with a map of memory that nobody reads: the copy engine knows no array without elements."""
    def main(world):
        return gemm_reduce_scatter(world, array(1, 64), array(64, 136)).shape

    with World.local(2, executor="gpu") as world:
        assert world.run(main) == [(1, 136), (0, 136)]
    dims = [fields(line)["dims"] for line in stub.log("cuTensorMapEncodeTiled")]
    assert dims.count("136,1") == 2, "of C's row and of what stands for none"


def test_one_rank_starts_early(world, stub):  # noqa: F811
    stub.clear()
    gemm(world, array(16, 16), array(16, 16))
    assert "attr6=1" in stub.log("cuLaunchKernelEx")[0], "programmatic stream serialization"


@pytest.mark.parametrize("name", [f"{i}" for i in range(len(config._GEMMS))])
def test_every_choice_passes_its_check(name):
    for family in (config.GemmConfig, config.GemmAllReduceConfig):
        for dtype in ("bfloat16", "float16"):
            for layout in (True, False):
                family(**config._GEMMS[int(name)][0], dtype=dtype, b_transposed=layout).check()
