"""What counts as a race, and what does not."""

import numpy as np
import pytest

from pknumba import interpreter as cpu
from pknumba.errors import ProtocolError, RaceError
from pknumba.tiles import Tile

from .play import TILE, launch, play


def tensor(n=1, rows=8, cols=64, dtype=np.float32, rank=0, arrays=None):
    return cpu.Tensor("X", arrays or [np.ones((rows, cols), dtype) for _ in range(n)], rank)


def window(x, peer=None, row=0, col=0, shape=(8, 64)):
    return x.window((row, col), shape, peer)


def test_report_names_both_sides():
    def first(s):
        cpu.write(s.t, 1.0)

    def second(s):
        cpu.read(s.t)
    with pytest.raises((RaceError, ProtocolError)) as caught:
        play(("first", first), ("second", second), tiles=dict(t=TILE), policy="fifo")
    text = str(caught.value)
    assert text.startswith("rank 0 block 0 second at test_races.py:") and "(second): read of t of rank 0 block 0" in text
    assert "is not ordered after the write by write of rank 0 block 0 first at test_races.py:" in text
    assert "Let rank 0 block 0 first arrive on a semaphore" in text and "reproduce: World.local(1" in text
    error = caught.value
    assert (error.rank, error.block, error.role, error.part) == (0, 0, "second", 0) and error.filename.endswith("test_races.py")
    assert error.other["task"] == "rank 0 block 0 first" and error.region == "t of rank 0 block 0"


@pytest.mark.parametrize("completion", ["eager", "random", "late"])
def test_two_unordered_loads_into_one_tile(completion):
    x = tensor()

    def loader(s):
        s.full[0].expect(2 * s.t.nbytes)
        cpu.transfer("load_async", window(x), s.t, completes=s.full[0])
        cpu.transfer("load_async", window(x), s.t, completes=s.full[0])
        s.full[0].wait(0)
    with pytest.raises(RaceError, match="Wait for the phase of the semaphore that the load completes"):
        play(("loader", loader), tiles=dict(t=TILE), semaphores=dict(full=("loader", 1)), completion=completion)


def test_any_number_of_loads_in_flight():
    """A fixed pool of pseudo threads would lose the race with the 30th of 40 loads."""
    x, tile = tensor(), Tile((40, 8, 64), "float32")

    def loader(s):
        for i in range(40):
            s.full[i].expect(s.t[i].nbytes)
            cpu.transfer("load_async", window(x), s.t[i], completes=s.full[i])

    def reader(s):
        for i in range(40):
            if i != 30:
                s.full[i].wait(0)
        cpu.read(s.t[30])
    for seed in range(5):
        with pytest.raises((RaceError, ProtocolError)):
            play(("loader", loader), ("reader", reader), tiles=dict(t=tile), semaphores=dict(full=("loader", 1, 40)), seed=seed)


def test_reductions_need_no_order_among_themselves():
    arrays = [np.zeros((8, 64), np.float32) for _ in range(3)]
    done = [np.zeros(1, np.uint32) for _ in range(3)]

    def worker(rank, early=False):
        x, counters = tensor(rank=rank, arrays=arrays), cpu.Counters("done", done, rank)

        def role(s):
            cpu.write(s.t, float(rank + 1))
            cpu.fence_async(s.t)
            for peer in range(3):
                cpu.transfer("store_add_async", s.t, window(x, peer), combine="add")
            cpu.current().stores.wait(0, "written")
            for peer in range(3):
                counters.add(peer, 0)
            counters.wait(0, 2 if early else 3)
            assert (cpu.read(window(x)) == 6).all() or early
        return ("worker", role, dict(rank=rank))
    play(*[worker(rank) for rank in range(3)], tiles=dict(t=TILE))
    assert all((a == 6).all() for a in arrays)
    with pytest.raises(RaceError, match="not ordered after the reduction|reduction of X of rank"):
        play(*[worker(rank, early=True) for rank in range(3)], tiles=dict(t=TILE))


@pytest.mark.parametrize("combine,expected", [("add", 5), ("min", 2), ("max", 3)])
def test_combine(combine, expected):
    x = tensor(arrays=[np.full((8, 64), 3, np.float32)])

    def role(s):
        cpu.write(s.t, 2)
        cpu.fence_async(s.t)
        cpu.transfer("store", s.t, window(x), combine=combine)
        cpu.current().stores.wait(0, "written")
    play(("worker", role), tiles=dict(t=TILE))
    assert (x.arrays[0] == expected).all()


def test_read_wait_frees_the_source_only():
    x, y = tensor(), tensor()

    def good(s):
        cpu.write(s.t, 1)
        cpu.fence_async(s.t)
        cpu.transfer("store_async", s.t, window(x))
        cpu.current().stores.wait(0, "read")
        cpu.write(s.t, 2)

    def bad(s):
        good(s)
        cpu.read(window(x))
    play(("worker", good), tiles=dict(t=TILE))
    with pytest.raises(RaceError, match="Call store_async_wait first"):
        play(("worker", bad), tiles=dict(t=TILE))
    del y


def test_pending_stores():
    x = tensor(rows=32)

    def role(s, pending):
        for i in range(3):
            cpu.write(s.t[i], float(i))
            cpu.fence_async(s.t[i])
            cpu.transfer("store_async", s.t[i], window(x, row=i))
        cpu.current().stores.wait(pending, "read")
        cpu.write(s.t[1], 7)
        cpu.current().stores.wait(0, "read")
    tiles = dict(t=Tile((3, 8, 64), "float32"))
    play(("worker", lambda s: role(s, 1)), tiles=tiles)
    with pytest.raises(RaceError, match="Call store_async_read_wait first"):
        play(("worker", lambda s: role(s, 2)), tiles=tiles)


def test_tiles_that_reuse_memory_are_one_memory():
    """c lies over the second half of a: a race between c and a[1], none between c and a[0]."""
    tiles = dict(a=(1024, Tile((2, 8, 64), "float32")), c=(1024 + 2048, TILE))

    def one(s):
        cpu.write(s.c, 1)

    def other(stage):
        return lambda s: cpu.write(s.a[stage], 1)
    play(("one", one), ("other", other(0)), tiles=tiles)
    with pytest.raises(RaceError):
        play(("one", one), ("other", other(1)), tiles=tiles)


def test_fence_must_come_between_the_write_and_the_arrival():
    x = tensor()

    def writer(order):
        def role(s):
            for step in order:
                {"write": lambda: cpu.write(s.t, 1), "fence": lambda: cpu.fence_async(s.t), "arrive": s.full[0].arrive}[step]()
        return ("writer", role)

    def storer(s):
        s.full[0].wait(0)
        cpu.transfer("store_async", s.t, window(x))
        cpu.current().stores.wait(0, "written")
    options = dict(tiles=dict(t=TILE), semaphores=dict(full=("writer", 1)))
    for seed in range(6):
        play(writer(["write", "fence", "arrive"]), ("storer", storer), seed=seed, **options)
        for order in (["write", "arrive"], ["fence", "write", "arrive"], ["write", "arrive", "fence"]):
            with pytest.raises(ProtocolError, match="has not called fence_async since"):
                play(writer(order), ("storer", storer), seed=seed, **options)


def test_generic_readers_need_no_fence_and_old_writes_do_not_count():
    x = tensor()

    def role(s):
        cpu.write(s.t, 1)
        assert (cpu.read(s.t) == 1).all()
        s.full[0].expect(s.t.nbytes)
        cpu.transfer("load_async", window(x), s.t, completes=s.full[0])
        s.full[0].wait(0)
        cpu.transfer("store_async", s.t, window(x))
        cpu.current().stores.wait(0, "written")
    play(("loader", role), tiles=dict(t=TILE), semaphores=dict(full=("loader", 1)))


def test_undefined_shared_memory():
    def role(s):
        cpu.write(s.t[0], 1)
        cpu.read(s.t)
    with pytest.raises(ProtocolError, match=r"read reads t of rank 0 block 0, which nothing has written"):
        play(("worker", role), tiles=dict(t=Tile((2, 8, 64), "float32")))


def test_views_of_one_array_are_one_memory():
    base = np.zeros((16, 64), np.float32)
    whole, turned = cpu.Tensor("whole", [base], 0), cpu.Tensor("turned", [base.reshape(32, 32)], 0)
    half, line = cpu.Tensor("half", [base[8:]], 0), cpu.Tensor("line", [base.reshape(-1)], 0)
    clash = [(whole, (0, 0), (8, 64), turned, (3, 1), (4, 16)), (whole, (1, 0), (8, 64), half, (0, 1), (8, 32)),
             (line, (0, 3), (1, 64), whole, (3, 0), (1, 64))]
    apart = [(whole, (0, 0), (8, 64), turned, (4, 1), (4, 16)), (whole, (0, 0), (8, 64), half, (0, 1), (8, 32)),
             (line, (0, 3), (1, 64), whole, (4, 0), (1, 64))]

    def roles(x, coord, shape, y, other, other_shape):
        return (("a", lambda s: cpu.write(x.window(coord, shape), 1)), ("b", lambda s: cpu.write(y.window(other, other_shape), 2)))
    for case in apart:
        play(*roles(*case))
    for case in clash:
        with pytest.raises(RaceError):
            play(*roles(*case))


def test_launches_of_a_rank_are_ordered_and_of_two_ranks_are_not():
    arrays = [np.zeros((8, 64), np.float32)] * 2

    def writes(rank):
        x = cpu.Tensor("X", [arrays[0], arrays[0]], rank)
        return [("w", lambda s: cpu.write(window(x), 1), dict(rank=rank))]

    def run(mains):
        session = cpu.Session()
        for rank, main in enumerate(mains):
            session.spawn_host(rank, lambda rank=rank, main=main: main(session, rank))
        session.run()

    def twice(session, rank):
        launch(session, rank, writes(rank), {}, {})
        launch(session, rank, writes(rank), {}, {})

    here = []

    def meet(session, rank):
        if rank == 0:
            launch(session, 0, writes(0), {}, {})
        here.append(rank)
        session.block_host(lambda: len(here) == 2, "the other rank")
        if rank == 1:
            launch(session, 1, writes(1), {}, {})
    run([twice])
    run([meet, meet])
    with pytest.raises(RaceError):
        run([twice, twice])


def test_freed_memory_is_forgotten():
    session = cpu.Session()
    for _ in range(20):
        x = tensor()
        play(("w", lambda s, x=x: cpu.write(window(x), 1)), session=session)
        del x
    assert len(list(session.memory)) <= 2


def test_multiplications_read_their_operands_until_the_wait():
    def role(s, pending, other=False):
        cpu.write(s.a, 1)
        cpu.write(s.b, 1)
        cpu.fence_async(s.a)
        cpu.fence_async(s.b)
        acc, second = cpu.Accumulator(8, 64), cpu.Accumulator(8, 64)
        acc.multiply(s.a, s.b, False)
        if other:
            second.multiply(s.a, s.b, False)
        acc.wait(pending)
        if other:
            assert (acc.columns(0, 64) == 64).all()
        cpu.write(s.b, 2)
        second.wait(0)
        assert (acc.columns(8, 4) == 64).all() and acc.columns(8, 4).shape == (8, 4)
    tiles = dict(a=TILE, b=Tile((64, 64), "float32"))
    play(("consumer", lambda s: role(s, 0)), tiles=tiles)
    for seed in range(4):
        with pytest.raises(RaceError, match="Call mma_wait first"):
            play(("consumer", lambda s: role(s, 1, other=True)), tiles=tiles, seed=seed)
