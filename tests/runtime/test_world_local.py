"""Worlds of one process, on the interpreter and (with the stand-in for the driver) on GPUs."""

import ml_dtypes
import numpy as np
import pytest

from pknumba.errors import ConfigError, DeadlockError, DTypeError, ShapeError, UnsupportedError, WorldError
from pknumba.runtime import World, driver, libcuda

EXECUTORS = ["interpreter", "gpu"]


@pytest.fixture(params=EXECUTORS)
def executor(request):
    """Each executor in turn; the GPU is the stand-in."""
    if request.param == "gpu":
        request.getfixturevalue("stub")
    return request.param


def numpy_of(x):
    return x.get() if hasattr(x, "get") else np.array(x)


def put(x, values):
    if hasattr(x, "set"):
        x.set(values)
    else:
        x[...] = values


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_peers_see_each_other(executor, size):
    def main(world):
        a = world.symmetric((3, 5), "bfloat16")
        assert a.pitch == 16 and a.local.shape == (3, 5) and a.local.strides == (16, 2)
        put(a.local, np.full((3, 5), world.rank + 1))
        world.barrier()
        seen = [float(numpy_of(a.peer(r))[2, 4]) for r in range(world.size)]
        world.barrier()
        put(a.peer((world.rank + 1) % size), np.full((3, 5), 10 + world.rank))
        world.barrier()
        return seen, float(numpy_of(a.local)[0, 0]), world.rank

    with World.local(size, executor=executor) as world:
        for rank, (seen, given, me) in enumerate(world.run(main)):
            assert seen == [r + 1.0 for r in range(size)] and given == 10 + (rank - 1) % size and me == rank


def test_arguments_results_and_state_between_runs(executor):
    with World.local(3, executor=executor) as world:
        def first(world, k):
            world.state = k * world.rank
            return world.size
        assert world.run(first, 5) == [3, 3, 3]
        assert world.run(lambda world: world.state) == [0, 5, 10]


def test_counters_start_at_zero(executor):
    def main(world):
        c = world.counters("ready", 4)
        if executor == "interpreter":
            world.barrier()
            c.arrays[(world.rank + 1) % 2][1] += 3
        else:
            driver.memset_u32(c._block.pointers[(world.rank + 1) % 2] + 4, 3, 1)
        world.barrier()
        return c.values().tolist()

    assert World.local(2, executor=executor).run(main) == [[0, 3, 0, 0]] * 2


@pytest.mark.parametrize("value, kind, text", [
    (lambda r: {"M": 1, "A.shape": (4, 4 + r // 2)}, ShapeError, r"Gemm: A.shape is \(4, 4\) on ranks 0 and 1 and \(4, 5\) on "
                                                                 r"rank 2"),
    (lambda r: {"dtype": "f16" if r == 1 else "f32"}, DTypeError, "dtype is f32 on ranks 0 and 2 and f16 on rank 1"),
    (lambda r: {"config": f"stages={r}"}, ConfigError, "stages=0 on rank 0 and stages=1 on rank 1 and stages=2 on rank 2"),
    (lambda r: {"op": r % 2, "shape": r}, WorldError, "op is 0 on ranks 0 and 2 and 1 on rank 1"),
    (lambda r: {"a": 1} if r else {"a": 1, "b": 2}, WorldError, "b is 2 on rank 0 and missing on ranks 1 and 2")])
def test_agree_names_the_first_difference_on_every_rank(executor, value, kind, text):
    def main(world):
        world.agree("Gemm", {"shape": (1, 2), "x": 3})
        with pytest.raises(kind, match=text):
            world.agree("Gemm", value(world.rank))
        return True

    assert World.local(3, executor=executor).run(main) == [True] * 3


def test_different_collectives_are_noticed(executor):
    def main(world):
        return world.barrier() if world.rank else world.symmetric((4, 4))

    with pytest.raises(WorldError, match="rank 0 in agree on World.symmetric, rank 1 in barrier"):
        World.local(2, executor=executor).run(main)


def test_symmetric_checks_its_arguments(executor):
    def main(world):
        with pytest.raises(ShapeError, match="World.symmetric: shape is"):
            world.symmetric((2, 2 + world.rank))
        with pytest.raises(DTypeError, match="dtype 'complex64'"):
            world.symmetric((2,), "complex64")
        with pytest.raises(ShapeError, match="none is negative"):
            world.symmetric((2, -1))
        with pytest.raises(WorldError, match=r"peer\(2\).*ranks 0 to 1"):
            world.symmetric((2,)).peer(2)
        for dtype, name in ((np.float32, "float32"), (np.dtype("int32"), "int32"), (ml_dtypes.bfloat16, "bfloat16")):
            assert world.symmetric((2,), dtype).dtype == name
        assert world.symmetric((0, 7)).local.shape == (0, 7)
        assert world.symmetric((2, 3, 5), "float32").strides == (96, 32, 4)

    World.local(2, executor=executor).run(main)


def test_split(executor):
    def main(world):
        part = world.split([3, 1, 0])
        assert (part is None) == (world.rank == 2)
        if part is None:
            return None
        a = part.symmetric((2, 2), "float32")
        put(a.local, np.full((2, 2), world.rank))
        part.barrier()
        seen = [float(numpy_of(a.peer(r))[0, 0]) for r in range(3)]
        pair = part.split((1, 2))
        return seen, part.rank, part.allgather(world.rank), pair and pair.allgather(world.rank)

    with World.local(4, executor=executor) as world:
        results = world.run(main)
    assert results[2] is None
    assert results[3] == ([3.0, 1.0, 0.0], 0, [3, 1, 0], None) and results[1] == ([3.0, 1.0, 0.0], 1, [3, 1, 0], [1, 0])


def test_parts_launch_as_ranks_of_the_whole():
    """Two parts have a rank 0 each: their launches must not be taken for one rank's."""
    from pknumba.interpreter import Counters
    from pknumba.tiles import Role

    def main(world):
        part = world.split([0, 2] if world.rank != 1 else [1])
        part = part.split(range(part.size))
        counters = Counters("ready", part.counters("ready", 4).arrays, part.rank)
        launch = part.session.launch(part.rank, "k", 1)

        def role():
            for peer in range(part.size):
                counters.add(peer, 0)
            counters.wait(0, part.size)

        launch.role(launch.block(0), Role("x"), 0, role)
        launch.wait()
        return launch.rank, counters.value(0)

    assert World.local(3, executor="interpreter").run(main) == [(0, 2), (1, 1), (2, 2)]


def test_split_wants_different_ranks_of_the_world():
    with World.local(1, executor="interpreter") as world:
        for ranks in ([], [0, 0], [1], [-1]):
            with pytest.raises(WorldError, match="different ranks out of 0 to 0"):
                world.split(ranks)
        assert world.split([0]).size == 1


def test_closed_things_say_so(executor):
    world = World.local(1, executor=executor)
    with world.symmetric((2, 2)) as a:
        view = a.local
    a.close()
    with pytest.raises(WorldError, match="closed"):
        print(a.local)
    if executor == "gpu":
        with pytest.raises(WorldError, match="Views end with it"):
            view.get()
    world.close(), world.close()
    for call in (world.barrier, lambda: world.agree("x", {}), lambda: world.session, world.synchronize, world.check,
                 lambda: world.run(id)):
        with pytest.raises(WorldError, match="World: closed"):
            call()


def test_a_local_world_is_no_rank(executor):
    with World.local(2, executor=executor) as world:
        for name in ("rank", "barrier", "symmetric", "synchronize"):
            with pytest.raises(WorldError, match=f"World.{name}: this world has 2 ranks"):
                getattr(world, name)
        assert world.size == 2 and world.executor == executor and world.num_sms > 0 and not world.closed


@pytest.mark.parametrize("options, text", [
    (dict(executor="cuda"), "executor = 'cuda'"), (dict(sedd=1), "no option 'sedd'"), (dict(size=0), "at least 1")])
def test_bad_options(options, text):
    with pytest.raises(ConfigError, match=text):
        World.local(**{"size": 2, "executor": "interpreter", **options})


def test_auto_falls_back_to_the_interpreter(monkeypatch):
    monkeypatch.setattr(libcuda, "LIBRARY", "libnothing-of-this-name.so")
    libcuda.unload()
    assert World.local(1).executor == "interpreter"
    with pytest.raises(UnsupportedError, match="libnothing-of-this-name.so"):
        World.local(1, executor="gpu")
    libcuda.unload()


# ---- interpreter only

def test_a_missing_rank_is_a_deadlock():
    def main(world):
        if world.rank != 1:
            world.barrier()

    with pytest.raises(DeadlockError, match="rank 1 in barrier"):
        World.local(3, executor="interpreter").run(main)


def test_an_error_breaks_the_world_and_reproduces():
    def main(world):
        if world.rank == 1:
            raise ShapeError("mine")
        world.barrier()

    world = World.local(2, executor="interpreter", seed=3, policy="pct")
    with pytest.raises(ShapeError, match='(?s)mine.*World.local.2, executor="interpreter", seed=3, policy="pct"'):
        world.run(main)
    with pytest.raises(WorldError, match="broken .ShapeError"):
        world.run(main)
    world.close()


def test_interpreter_arrays_start_as_nan():
    with World.local(1, executor="interpreter", num_sms=7) as world:
        assert np.isnan(world.symmetric((3, 3), "bfloat16").local.astype("f4")).all()
        assert (world.symmetric((4,), "uint32").local == 0x7f7f7f7f).all()
        assert world.num_sms == 7 and world.device is None and world.error_record == 0
        assert world.asarray([1.0]).dtype == "f8" and world.session is world.session
        assert world.context() is None and world.stream_of() == 0
