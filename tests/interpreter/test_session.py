"""The session itself: who may call what, errors and their text, reuse, limits; and windows of global memory."""

import gc
import warnings

import numpy as np
import pytest

from pknumba import interpreter as cpu
from pknumba.errors import ConfigError, ContractError, DeadlockError, HangError, LayoutError, ProtocolError
from pknumba.interpreter.task import RoleTask
from pknumba.tiles import Role, Tile

from .play import TILE, play


def test_outside_a_kernel():
    counters = cpu.Counters("n", [np.zeros(1, np.uint32)], 0)
    for call in (cpu.current, cpu.sync, lambda: cpu.turn_wait(0), lambda: counters.wait(0, 1)):
        with pytest.raises(ContractError, match="outside a kernel"):
            call()


def test_current():
    def role(s):
        task = cpu.current()
        assert (task.rank, int(task.block), task.part, task.role) == (0, 1, 1, Role("a", "thread", 2))
        assert task.name == "rank 0 block 1 a 1" and task.session is session and 0 <= task.rng.random() < 1
        seen.append(task.name)
    seen, session = [], cpu.Session()
    play(("a", role, dict(block=1, part=1, workers=2)), session=session)
    assert seen


def test_without_host_tasks():
    """A world of one rank is used directly, without run()."""
    session, x = cpu.Session(), np.zeros((8, 64), np.float32)
    for call in range(3):
        launch = session.launch(0, "direct", 2)
        for number in range(2):
            tensor = cpu.Tensor("X", [x], 0)
            window = tensor.window((number, 0), (4, 64))
            launch.role(launch.block(number), Role("a"), 0, lambda w=window, value=number + call: cpu.write(w, value))
        launch.wait()
        launch.wait()
        assert (x[:4] == call).all() and (x[4:] == call + 1).all()


def test_bad_options():
    with pytest.raises(ConfigError, match="policy = 'x'"):
        cpu.Session(policy="x")
    with pytest.raises(ConfigError, match="completion = 'x'"):
        cpu.Session(completion="x")
    with pytest.raises(ConfigError, match="resident = 0"):
        cpu.Session().launch(0, "k", 1, 0)
    with pytest.raises(ConfigError, match="block 2 of a grid of 2"):
        cpu.Session().launch(0, "k", 2).block(2)
    with pytest.raises(ConfigError, match="tile t: bytes"):
        play(("a", lambda s: None), tiles=dict(t=Tile((512, 512), "float32")))


def test_an_exception_of_the_kernel_keeps_its_type_and_gets_notes():
    def role(s):
        raise KeyError("mine")
    with pytest.raises(KeyError) as caught:
        play(("a", role, dict(block=2)), ("b", lambda s: s.full[0].wait(0)), semaphores=dict(full=("a", 1)), seed=3)
    notes = ["raised in rank 0 block 2 a",
             'reproduce: World.local(1, executor="interpreter", seed=3, policy="random", completion="random")']
    assert getattr(caught.value, "__notes__", notes) == notes           # Python 3.10 has no notes


def test_session_after_a_failure():
    session, x = cpu.Session(), cpu.Tensor("X", [np.zeros((8, 64), np.float32)], 0)
    with pytest.raises(DeadlockError):
        play(("a", lambda s: cpu.write(x.window((0, 0), (8, 64)), 1)), ("b", lambda s: s.full[0].wait(0)),
             semaphores=dict(full=("a", 1)), session=session)
    play(("c", lambda s: cpu.write(x.window((0, 0), (8, 64)), 2)), session=session)
    assert (x.arrays[0] == 2).all()


def test_finally_of_a_stopped_role_runs():
    def role(s):
        try:
            s.full[0].wait(0)
        finally:
            cleaned.append(1)
            s.full[0].wait(0)
    cleaned = []
    with pytest.raises(DeadlockError):
        play(("a", role), semaphores=dict(full=("a", 1)))
    assert cleaned == [1]


def test_max_switches():
    def role(s):
        while True:
            s.full[0].wait(1)
    with pytest.raises(HangError, match="max_switches = 100"):
        play(("a", role), semaphores=dict(full=("a", 1)), max_switches=100)


def test_watchdog():
    def role(s):
        while True:
            pass
    with pytest.raises(HangError, match="rank 0 block 0 a: ran for 0.2 s without calling a primitive"):
        play(("a", role), watchdog=0.2)


def roles_in_memory():
    gc.collect()
    return sum(isinstance(found, RoleTask) for found in gc.get_objects())


@pytest.mark.parametrize("value, how", [(1, "ends"), (2, "hangs")])
def test_nothing_of_a_run_is_left(value, how):
    """Neither of one that ended nor of one that did not: the collector cannot free dictionaries that got a running greenlet."""
    def run():
        def tell(s):
            cpu.number_of(1)
            counters[0].add(1, 0)

        def hear(s):
            cpu.number_of(1)
            counters[1].wait(0, value)
            cpu.write(s.t, 0.0)
            cpu.keep_epoch()
        arrays = [np.zeros(1, np.uint32) for _ in range(2)]
        counters = [cpu.Counters("n", arrays, rank) for rank in range(2)]
        try:
            play(("a", tell), ("b", hear, dict(rank=1)), tiles=dict(t=TILE))
        except DeadlockError:
            return "hangs"
        return "ends"
    before = roles_in_memory()
    assert run() == how
    assert roles_in_memory() == before


def test_errstate_of_the_caller_holds_in_roles_and_does_not_leak():
    def strict(s):
        with np.errstate(divide="raise"):
            s.full[0].arrive()
            for _ in range(10):
                s.full[0].wait(0)

    def lax(s):
        for _ in range(10):
            np.float32(1) / np.float32(0)
            s.full[0].wait(0)
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("error")
        play(("a", strict), ("b", lax), semaphores=dict(full=("a", 1)))
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
            play(("b", lambda s: np.float32(1) / np.float32(0)))


def test_windows():
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    x = cpu.Tensor("X", [base[:, :8], None], 0)
    assert x.shape == (6, 8) and x.dtype == np.float32 and x.world_size == 2

    def role(s):
        edge = x.window((1, 1), (2, 2, 5))
        assert edge.shape == (2, 2, 5) and edge.name == "X of rank 0 [4:8, 5:10]"
        values = cpu.read(edge).reshape(4, 5)
        assert (values[:2, :3] == base[4:6, 5:8]).all() and not values[2:].any() and not values[:, 3:].any()
        cpu.write(edge, np.full((4, 5), 7))
        cpu.write(x.window((5, 5), (2, 5)), np.ones((2, 5)))
        assert not cpu.read(x.window((5, 5), (2, 5))).any()
        with pytest.raises(ProtocolError, match="starts before the array"):
            x.window((-1, 0), (2, 2))
        with pytest.raises(ProtocolError, match="rank 0 may not look at the memory of rank 1"):
            x.window((0, 0), (2, 2), 1)
        with pytest.raises(ProtocolError, match="peer 2 of a world of 2"):
            x.window((0, 0), (2, 2), 2)
    play(("a", role))
    assert (base[4:6, 5:8] == 7).all() and (base[4:6, 8:] > 40).all() and base[3, 5] == 35


def test_ranks_and_strides_of_tensors():
    line = cpu.Tensor("line", [np.arange(64, dtype=np.float32)], 0)
    cube = cpu.Tensor("cube", [np.zeros((2, 3, 4), np.float32)], 0)
    bad = cpu.Tensor("bad", [np.zeros((4, 8), np.float32).T], 0)

    def role(s):
        assert (cpu.read(line.window((0, 1), (1, 16)))[0] == np.arange(16, 32)).all()
        cpu.write(cube.window((1, 0), (3, 4)), 1)
        with pytest.raises(LayoutError, match="Rows must be contiguous"):
            cpu.read(bad.window((0, 0), (2, 2)))
    play(("a", role))
    assert cube.arrays[0][1].all() and not cube.arrays[0][0].any()


def test_regions_that_do_not_fit():
    x = cpu.Tensor("X", [np.zeros((8, 64), np.float16)], 0)

    def role(s):
        with pytest.raises(ContractError, match="converts nothing"):
            cpu.transfer("store_async", s.t, x.window((0, 0), (8, 64)))
        with pytest.raises(ContractError, match="moves one tile onto one of the same size"):
            cpu.transfer("store_async", s.h, x.window((0, 0), (4, 64)))
        with pytest.raises(ContractError, match="combine = 'mul'"):
            cpu.transfer("store_async", s.h, x.window((0, 0), (8, 64)), combine="mul")
        with pytest.raises(ContractError, match="The shapes must fit"):
            cpu.Accumulator(8, 8).multiply(s.t, s.t, False)
        with pytest.raises(ContractError, match="write: "):
            cpu.write(s.t, np.zeros((3, 3)))
    play(("a", role), tiles=dict(t=TILE, h=Tile((8, 64), "float16")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "uint32"])
def test_dtypes(dtype):
    x = cpu.Tensor("X", [np.zeros((8, 64), cpu.dtype_of(dtype))], 0)

    def role(s):
        assert s.t.dtype == cpu.dtype_of(dtype) and s.t.nbytes == 8 * 64 * s.t.dtype.itemsize
        if dtype in ("bfloat16", "float16", "float32"):
            assert np.isnan(s.t.array.astype(np.float32)).all()
        cpu.write(s.t, np.arange(512).reshape(8, 64) % 100)
        cpu.fence_async(s.t)
        cpu.transfer("store_async", s.t, x.window((0, 0), (8, 64)))
        cpu.current().stores.wait(0, "written")
    play(("a", role), tiles=dict(t=Tile((8, 64), dtype)))
    assert (x.arrays[0].astype(np.float32).ravel() == np.arange(512) % 100).all()
