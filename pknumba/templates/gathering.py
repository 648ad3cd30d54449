"""Grouped kernels whose rows of A lie anywhere: two warps of every block gather them, beside the loader."""

from ..primitives import div, i32
from ..primitives.gathering import WARPS
from ..tiles import Role
from .groups import Grouped


class Gathering(Grouped):
    """A Grouped kernel with a role ``gatherer``: two warps of the blocks that compute, with the tasks of their block."""

    @classmethod
    def roles(kernel, cfg):
        """With the gatherer."""
        return {**super().roles(cfg), "gatherer": Role("gatherer", "warp", WARPS, beside=True)}

    @classmethod
    def driver(kernel, role):
        """The gatherer works together, too."""
        return (lambda play, _: beside(kernel, play)) if role.name == "gatherer" else super().driver(role)


def beside(kernel, play):
    """As ``groups.together``; ``place`` counts workers that are beside others, not their blocks."""
    def drive(cfg, g, s, part, place, places):
        block, blocks = div(place, WARPS), div(places, WARPS)
        spot = i32(0), i32(0), kernel.end(cfg, g, i32(0), i32(0)), i32(0)
        for turn in range(kernel.turns(cfg, g)):
            number = kernel.number(cfg, g, i32(turn), block, blocks)
            spot = kernel.advance(cfg, g, number, *spot)
            if spot[0] >= g.groups:
                break
            play(cfg, g, s, kernel.task(cfg, g, number, i32(turn), part, spot))
    return drive
