"""Ranks that share a card: no more of their blocks run at once than it has SMs, in an order that is drawn."""

import numpy as np
import pytest

from pknumba import CommConfig, World, all_reduce, errors, gemm_all_reduce

ONES = np.ones((40, 64), "float32")


def sums(config, ranks=2, **options):
    """all_reduce of ones by ranks of one card."""
    return World.local(ranks, executor="interpreter", **options).run(lambda world: all_reduce(world, ONES, config=config).copy())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("blocks", [1, 4, 6])
def test_blocks_of_all_ranks_find_room(blocks, seed):
    """Of one number they meet, in order: it is enough that each rank's first ones fit beside the others'."""
    config = CommConfig(blocks=blocks, algorithm="two-shot", unroll=1)
    assert all((y == 2).all() for y in sums(config, card_sms=12, num_sms=12, seed=seed))


def test_a_rank_that_takes_the_whole_card():
    """Blocks of the rank that came first fill it, and wait there for the other's."""
    with pytest.raises(errors.DeadlockError) as found:
        sums(CommConfig(blocks=12, algorithm="two-shot", unroll=1), card_sms=12, num_sms=12)
    for words in ("0 of its 12 blocks run", "the 12 SMs of the card are taken", "card_sms=12"):
        assert words in str(found.value), found.value
    assert all((y == 2).all() for y in sums(CommConfig(blocks=12, algorithm="two-shot", unroll=1), card_sms=24))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_rank_has_a_share(ranks):
    """As on a GPU that ranks as threads share; what a call then chooses fits."""
    def main(world):
        a = np.ones((300, 64), "float16")
        return world.num_sms, world.sharing, world.crowded, gemm_all_reduce(world, a, a.T), all_reduce(world, np.ones(300_000, "float32"))
    for sms, *sharing, c, total in World.local(ranks, executor="interpreter", card_sms=17, races=False).run(main):
        assert (sms, sharing) == (17 // ranks, [True, True]) and (c == 64 * ranks).all() and (total == ranks).all()


def test_a_session_goes_on_after_a_failure():
    """Room that blocks had when they were stopped is free again."""
    session = World.local(1, executor="interpreter", card_sms=3).session
    session.card.occupied = 3
    session._fail(errors.ContractError("stopped"))
    assert session.card.occupied == 0


@pytest.mark.parametrize("card_sms", [0, -1, 1.5, "3"])
def test_refused(card_sms):
    with pytest.raises(errors.ConfigError, match="how many SMs the ranks of one process share"):
        World.local(2, executor="interpreter", card_sms=card_sms, num_sms=2).run(lambda world: all_reduce(world, ONES))
