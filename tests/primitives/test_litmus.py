"""The litmus test of signals (tests/gpu/litmus.py) on the interpreter, and that it would notice: without a wait it fails."""

import pytest

from pknumba import World
from pknumba.errors import RaceError
from pknumba.primitives import i32, mod, ring, signal, signal_all, store_async, store_async_read_wait, wait, wait_until

from ..gpu.controls import CONTROLS, LIMITS
from ..gpu.litmus import WORDS, Bulk, Plain, arrive, count_wrong, differences, imprint, pattern, play
from .tiny import TinyConfig, cubin


class Hasty(Plain):
    """Reads before it has waited for the signal."""

    @staticmethod
    def communicator(cfg, g, s, task):
        after, before = mod(g.rank + 1, g.world_size), mod(g.rank + g.world_size - 1, g.world_size)
        wrong = i32(0)
        for r in range(g.k_tiles):
            wait_until(g.seen, after, r)
            imprint(g.X, i32(r), after)
            signal_all(g.sent, g.rank)
            wrong = i32(wrong + differences(g.X, i32(r)))
            wait_until(g.sent, before, r + 1)
            signal_all(g.seen, g.rank)
        count_wrong(g.wrong, 0, wrong)


class Careless(Bulk):
    """Signals when the tile has been read, not when it is written at the peer."""

    @staticmethod
    def storer(cfg, g, s, task):
        after = mod(g.rank + 1, g.world_size)
        for r in range(g.k_tiles if task.id == 0 else 0):
            wait_until(g.seen, after, r)
            wait(s.mine_full[0], ring(r, 1)[1])
            store_async(g.X, (0, 0), s.mine, after)
            store_async_read_wait(0)
            arrive(s.mine_empty[0])
            signal(g.sent, g.rank, after)


@pytest.mark.parametrize("kernel", [Plain, Bulk])
@pytest.mark.parametrize("options", [dict(policy="random", completion="late"), dict(policy="pct", completion="random")])
def test_every_word_is_there(kernel, options):
    for size in (2, 3):
        with World.local(size, executor="interpreter", seed=size, **options) as world:
            assert [wrong for wrong, _ in world.run(play, kernel, 12)] == [0] * size


@pytest.mark.parametrize("kernel", [Hasty, Careless])
def test_a_race_is_found(kernel):
    with pytest.raises(RaceError, match="of X of rank"):
        World.local(2, executor="interpreter", seed=3).run(play, kernel, 12)


@pytest.mark.parametrize("kernel", [Hasty, Careless])
def test_wrong_words_are_counted(kernel):
    """With the race checker off, some schedule shows the bug in the values that are compared."""
    wrong = 0
    for seed in range(20):
        with World.local(2, executor="interpreter", seed=seed, races=False, completion="late") as world:
            wrong += sum(n for n, _ in world.run(play, kernel, 12))
    assert wrong > 0


def test_no_word_repeats():
    rounds = [pattern(n).view("u4").ravel() for n in range(64)]
    assert all((a != b).all() for a in rounds[:8] for b in rounds if a is not b) and len(rounds[1]) == WORDS


@pytest.mark.ptx
@pytest.mark.parametrize("kernel", [Plain, Bulk])
def test_it_compiles(kernel):
    assert cubin(kernel, TinyConfig(dtype="float32"))[1]["spill"] == 0


@pytest.mark.ptx
@pytest.mark.parametrize("kernel", [*CONTROLS.values(), *LIMITS.values()], ids=lambda kernel: kernel.__name__)
def test_controls_of_the_sanitizer_compile(kernel):
    assert cubin(kernel, TinyConfig(dtype="float32"))[1]["spill"] == 0
