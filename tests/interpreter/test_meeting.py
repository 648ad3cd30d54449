"""What shows that the threads of a worker have met, so that one of them may arrive for all."""

import pytest

from pknumba import interpreter as cpu
from pknumba.errors import ContractError
from pknumba.tiles import Tile

from .play import play

ONE = dict(full=("a", 1))


def multiplied(s, between, after):
    """A product, something after its wait, and an arrival that names ``after`` of (the product, another one, the shared tile)."""
    cpu.write(s.a, 1), cpu.write(s.b, 1)
    cpu.fence_async(s.a), cpu.fence_async(s.b)
    sums = cpu.Accumulator(64, 64).multiply(s.a, s.b, False).wait(0)
    if between:
        between(s, sums)
    s.full[0].arrive((sums, cpu.Accumulator(64, 64), s.a)[after])


BETWEEN = {"nothing": None, "a read": lambda s, sums: cpu.read(s.a), "a write": lambda s, sums: cpu.write(s.a, 1),
           "a product": lambda s, sums: sums.multiply(s.a, s.b, True), "a fence": lambda s, sums: cpu.fence_async(s.a)}


@pytest.mark.parametrize("between, after, right", [
    ("nothing", 0, True), ("nothing", 1, False), ("nothing", 2, False), ("a read", 0, False), ("a write", 0, False),
    ("a product", 0, False), ("a fence", 0, False), ("a fence", 2, True)])
def test_what_shows_that_threads_have_met(between, after, right):
    shape = Tile((64, 64), "bfloat16", 128)
    options = dict(tiles=dict(a=shape, b=shape), semaphores=ONE, races=False)

    def run():
        play(("a", lambda s: multiplied(s, BETWEEN[between], after)), **options)
    if right:
        run()
    else:
        with pytest.raises(ContractError, match=r"full\[0\]: arrives after .*does not show that this worker's threads have met"):
            run()
