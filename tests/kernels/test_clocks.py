"""clock_offsets on the interpreter: its protocol, and what notes of clocks that are apart say."""

import numpy as np
import pytest

from pknumba import World, lowering
from pknumba.config import CommConfig
from pknumba.kernels import clocks as kernel_file
from pknumba.kernels.clocks import Clocks, clock_offsets
from pknumba.lowering.entry import to_ptx
from pknumba.templates import clocks

from . import mutation
from .harness import schedule


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_every_rank_gets_the_same(size, seed, monkeypatch):
    monkeypatch.setattr(clocks, "ROUNDS", 2)

    def main(world):
        return [clock_offsets(world) for _ in range(3)]
    options = schedule(seed)
    with World.local(size, executor="interpreter", **options) as world:
        assert world.run(main) == [[[0] * size] * 3] * size


def noted(ahead, trips):
    """Notes of ranks whose clocks are so many nanoseconds ahead, of exchanges that take so long; the answer is on the way as long as the
    signal."""
    found = np.zeros((len(ahead), len(trips) * (len(ahead) - 1), 2), np.uint32)
    time = 2**32 - 5000                                                                 # the clock's low half wraps on the way
    for peer in range(1, len(ahead)):
        for i, trip in enumerate(trips):
            at = (peer - 1) * len(trips) + i
            found[0, at] = time % 2**32, (time + trip) % 2**32
            found[peer, at, 0] = (time + trip // 2 + ahead[peer] + (trip > 2000) * 700) % 2**32
            time += trip + 100
    return found


def test_what_notes_say(monkeypatch):
    """The quickest exchange counts: of others one way may be longer."""
    trips = [5000, 1500, 4000, 2600]
    monkeypatch.setattr(clocks, "ROUNDS", len(trips))
    for ahead in ([0], [0, 0], [0, 2_400_000, -17], [0, -2_000_000_000, 2_000_000_000, 1]):
        assert clocks.offsets(noted(ahead, trips)) == ahead


@pytest.mark.ptx
def test_cubin():
    """It fits, and signals are released and acquired over the whole system."""
    plan = Clocks.plan(CommConfig(blocks=1, warps=1, unroll=1, dtype="int32"))
    record, ptx = lowering.build(plan)[1], to_ptx(plan)
    assert (record["spill"], record["stack"], record["notices"]) == (0, 0, [])
    assert ptx.count("%globaltimer_lo") == 3 and "ld.acquire.sys.global.u32" in ptx
    assert ptx.count("fence.acq_rel.sys; red.relaxed.sys.global.add.u32") == 2


def play(kernel, n):
    def main(world):
        for _ in range(2):
            clocks.notes(kernel, world)
    World.local(2 + n % 2, executor="interpreter", max_switches=20_000, **schedule(n)).run(main)


def test_every_mutant_is_noticed(monkeypatch):
    """But signals that are not needed to go on: a note that is taken too early is wrong by the clock alone."""
    monkeypatch.setattr(clocks, "ROUNDS", 2)
    alive, count = mutation.survivors(kernel_file, lambda m: m.Clocks, play, 12, report=print)
    assert not [line for line in alive if "wait_until" not in line and "one signal less" not in line], "\n".join(alive)
    assert count >= 2 and Clocks.operator == "clock_offsets"
