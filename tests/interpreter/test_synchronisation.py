"""Semaphores, counters, turns and barriers: what they order, what they refuse, what a deadlock says."""

import numpy as np
import pytest

from pknumba import interpreter as cpu
from pknumba.errors import ContractError, DeadlockError, ProtocolError, RaceError

from .play import TILE, launch, play

ONE = dict(full=("a", 1))


def nothing(s):
    pass


def test_fresh_semaphore_passes_the_phase_before():
    def role(s):
        s.full[0].wait(1)
    play(("b", role), semaphores=ONE)


def test_deadlock_names_every_wait():
    done = [np.zeros(4, np.uint32) for _ in range(2)]

    def a(s):
        s.full[0].expect(4096)
        s.full[0].wait(0)

    def b(s):
        s.full[1].wait(0)

    def c(s):
        counters = cpu.Counters("done", done, 1)
        counters.add(1, 2)
        counters.wait(2, 3)
    with pytest.raises(DeadlockError) as caught:
        play(("a", a), ("b", b, dict(workers=2, part=1)), ("c", c, dict(rank=1, block=3)), semaphores=dict(full=("a", 2, 2)))
    text = str(caught.value)
    for expected in ("deadlock: 5 of 5 tasks wait and nothing is in flight",
                     "rank 0 block 0 a at test_synchronisation.py:",
                     "full[0] phase 0 (parity 0; 1 of 2 arrivals by a: rank 0 block 0 a; 4096 bytes announced and not copied",
                     "rank 0 block 0 b 1 at test_synchronisation.py:",
                     "full[1] phase 0 (parity 0; 0 of 2 arrivals by a; nobody completed a phase)",
                     "rank 1 block 3 c at test_synchronisation.py:",
                     "done[2] of rank 1 >= 3 (is 1; added to so far by rank 1 block 3 c)",
                     "rank 1 host at play.py:", "waits for launch test to end (1 of 4 blocks have not)"):
        assert expected in text, text
    assert [row["rank"] for row in caught.value.waiting] == [0, 0, 0, 1, 1]
    assert caught.value.waiting[1]["role"] == "a" and caught.value.waiting[1]["line"]


def test_workers_that_wait_for_the_same_share_a_line():
    def role(part):
        return ("c", lambda s: s.full[0].wait(0), dict(part=part, workers=12))
    with pytest.raises(DeadlockError) as caught:
        play(*[role(part) for part in range(12)], semaphores=ONE)
    assert "rank 0 block 0 c 0 (and 11 more workers: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) at" in str(caught.value)
    assert len(caught.value.waiting) == 13


def test_grid_that_cannot_be_resident():
    def block(number, blocks):
        def role(s):
            counters = cpu.Counters("here", [here], 0)
            counters.add(0, 0)
            counters.wait(0, blocks)
        return ("worker", role, dict(block=number))
    here = np.zeros(1, np.uint32)
    play(*[block(i, 4) for i in range(4)], resident=4)
    here[:] = 0
    with pytest.raises(DeadlockError, match=r"the grid cannot be resident. 3 of its 4 blocks fit at once and block 3 cannot start"):
        play(*[block(i, 4) for i in range(4)], resident=3)
    here[:] = 0
    play(*[block(i, 1) for i in range(9)], resident=2)


def test_wrong_role_arrives():
    with pytest.raises(ContractError, match=r"semaphore full\[0\] is declared by='a', b may not arrive on it"):
        play(("b", lambda s: s.full[0].arrive()), semaphores=ONE)


def test_too_many_arrivals():
    def role(s):
        s.full[0].expect(16)
        s.full[0].arrive()
    with pytest.raises(ProtocolError, match=r"full\[0\]: 2 arrivals in phase 0"):
        play(("a", role), semaphores=ONE)


def test_leftovers():
    with pytest.raises(ProtocolError, match="ended with 1 of 2 arrivals"):
        play(("a", lambda s: s.full[0].arrive()), semaphores=dict(full=("a", 2)))
    with pytest.raises(ProtocolError, match="and 64 bytes outstanding"):
        play(("a", lambda s: s.full[0].expect(64)), semaphores=ONE)


def test_load_that_nobody_waits_for():
    x = cpu.Tensor("X", [np.zeros((8, 64), np.float32)], 0)

    def role(s):
        s.full[0].expect(s.t.nbytes)
        cpu.transfer("load_async", x.window((0, 0), (8, 64)), s.t, completes=s.full[0])
    for completion in ("eager", "late"):
        with pytest.raises(ProtocolError, match="a load into its shared memory may be in flight"):
            play(("a", role), tiles=dict(t=TILE), semaphores=ONE, completion=completion)


def test_store_whose_source_nobody_waits_for():
    x = cpu.Tensor("X", [np.zeros((8, 64), np.float32)], 0)

    def role(s):
        cpu.write(s.t, 1)
        cpu.fence_async(s.t)
        cpu.transfer("store_async", s.t, x.window((0, 0), (8, 64)))
    for completion in ("eager", "late"):
        with pytest.raises(ProtocolError, match="ended with 1 bulk stores .* never waited for"):
            play(("a", role), tiles=dict(t=TILE), completion=completion)


def test_lapped_wait():
    """b sleeps through phase 0: phase 1 completes, and parity 0 no longer tells."""
    def a(s):
        s.full[0].arrive()
        s.full[0].arrive()
        s.go[0].arrive()

    def b(s):
        s.go[0].wait(0)
        s.full[0].wait(1)
        s.full[0].wait(1)
        s.full[0].wait(1)

    def c(s):
        s.go[0].wait(0)
        s.full[0].wait(0)
    semaphores = dict(full=("a", 1), go=("a", 1))
    play(("a", a), ("b", b), semaphores=semaphores)         # what b knows through go says which phase it means
    with pytest.raises(DeadlockError):                      # c knows phase 1 complete, so parity 0 means phase 2
        play(("a", a), ("c", c), semaphores=semaphores)


def test_phase_that_completes_twice_before_the_wait():
    def a(s):
        for _ in range(3):
            s.full[0].arrive()

    def b(s):
        s.full[0].wait(0)
    with pytest.raises(ProtocolError, match="the parity no longer identifies it"):
        for seed in range(20):
            play(("a", a), ("b", b), semaphores=ONE, seed=seed)


@pytest.mark.parametrize("races", [True, False])
def test_workers_in_turns_follow_phases_together(races):
    """Ping-pong: each worker sees every other phase of a semaphore; turns order them."""
    def a(s):
        for turn in range(6):
            s.empty[0].wait(turn & 1 ^ 1)
            s.full[0].arrive()

    def b(part):
        def role(s):
            for turn in range(part, 6, 2):
                cpu.turn_wait(turn)
                s.full[0].wait(turn & 1)
                s.empty[0].arrive()
                cpu.turn_pass(turn)
        return ("b", role, dict(part=part, workers=2, together=False))
    for seed in range(10):
        play(("a", a), b(0), b(1), semaphores=dict(full=("a", 1), empty=("b", 1)), seed=seed, races=races)


def test_turns_order_memory():
    def b(part, wait=True):
        def role(s):
            for turn in range(part, 4, 2):
                if wait:
                    cpu.turn_wait(turn)
                cpu.write(s.t, turn)
                if wait:
                    cpu.turn_pass(turn)
        return ("b", role, dict(part=part, workers=2, together=False))
    play(b(0), b(1), tiles=dict(t=TILE))
    with pytest.raises(RaceError):
        play(b(0, False), b(1, False), tiles=dict(t=TILE))


def test_turn_that_was_not_waited_for():
    def b(s):
        cpu.turn_pass(0)
    with pytest.raises(ProtocolError, match=r"Call turn_wait\(0\) first"):
        play(("b", b))
    with pytest.raises(DeadlockError, match=r"turn 1 \(no turn was passed\)"):
        play(("b", lambda s: cpu.turn_wait(1)))


def test_sync():
    def b(part, meet=True):
        def role(s):
            for lap in range(3):
                cpu.write(s.t[part], lap)
                if meet:
                    cpu.sync()
                assert (cpu.read(s.t[1 - part]) == lap).all()
                if meet:
                    cpu.sync()
        return ("b", role, dict(part=part, workers=2))
    from pknumba.tiles import Tile
    tiles = dict(t=Tile((2, 8, 64), "float32"))
    for seed in range(5):
        play(b(0), b(1), tiles=tiles, seed=seed)
    with pytest.raises((RaceError, ProtocolError)):
        play(b(0, False), b(1, False), tiles=tiles)
    with pytest.raises(DeadlockError, match=r"sync 0 \(1 of 2 workers are here; missing: rank 0 block 0 b 1"):
        play(("b", lambda s: cpu.sync(), dict(part=0, workers=2)), ("b", nothing, dict(part=1, workers=2)))


def test_counters_wrap_and_may_be_set_by_the_host():
    arrays = [np.full(2, 0xfffffffe, np.uint32)]
    counters = cpu.Counters("n", arrays, 0)

    def role(s):
        counters.add(0, 1, 3)
        counters.wait(1, 1)
        assert counters.value(1) == 1 and counters.value(0) == 0xfffffffe
        counters.wait(0, 0xfffffff0)
    session = play(("a", role))
    arrays[0][:] = 0

    def writer(s):
        cpu.write(s.t, 1)
        counters.add(0, 1)

    def reader(s):
        counters.wait(1, 1)
        cpu.read(s.t)
    play(("a", writer), ("b", reader), tiles=dict(t=TILE), session=session)


def test_counter_orders_only_what_it_took():
    """Waiting for 1 of 2 additions acquires only the first."""
    arrays = [np.zeros(1, np.uint32)]
    counters = cpu.Counters("n", arrays, 0)

    def writer(part):
        def role(s):
            cpu.write(s.t[part], 1)
            counters.add(0, 0)
        return ("w", role, dict(part=part, workers=2))

    def reader(target):
        def role(s):
            counters.wait(0, target)
            cpu.read(s.t)
        return ("r", role)
    from pknumba.tiles import Tile
    tiles = dict(t=Tile((2, 8, 64), "float32"))
    for policy in ("fifo", "random", "pct", "starve"):
        for seed in range(5):
            arrays[0][:] = 0
            play(writer(0), writer(1), reader(2), tiles=tiles, policy=policy, seed=seed)
            arrays[0][:] = 0
            with pytest.raises((RaceError, ProtocolError)):
                play(writer(0), writer(1), reader(1), tiles=tiles, policy=policy, seed=seed)


def test_wrong_counters_and_indices():
    counters = cpu.Counters("n", [np.zeros(2, np.uint32), None], 0)
    for fn, text in ((lambda s: counters.add(1, 0), "no counters of rank 1"), (lambda s: counters.add(0, 2), "number 2 of 2"),
                     (lambda s: s.full[3], r"semaphore full: index 3 of 1"), (lambda s: s.t[0], "tile t: index")):
        with pytest.raises((ProtocolError, ContractError), match=text):
            play(("a", fn), semaphores=ONE, tiles=dict(t=TILE))


def test_host_tasks_take_part_in_deadlock_detection():
    session = cpu.Session()
    counters = [np.zeros(1, np.uint32) for _ in range(2)]

    def rank0():
        launch(session, 0, [("a", lambda s: cpu.Counters("n", counters, 0).wait(0, 1), dict(rank=0))], {}, {})

    session.spawn_host(0, rank0)
    session.spawn_host(1, lambda: session.block_host(lambda: False, lambda: "rank 1 waits in barrier for rank 0"))
    with pytest.raises(DeadlockError) as caught:
        session.run()
    assert "rank 1 host at test_synchronisation.py" in str(caught.value)
    assert "rank 1 waits in barrier for rank 0" in str(caught.value)
    assert "n[0] of rank 0 >= 1 (is 0; added to so far by nobody)" in str(caught.value)
