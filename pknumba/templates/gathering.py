"""Grouped kernels whose rows of A lie anywhere: two warps of every block gather them, beside the loader."""

from ..primitives import div, gather_wait, i32, most
from ..primitives.gathering import WARPS
from ..tiles import Role, Task
from .groups import Grouped


class Gathering(Grouped):
    """A Grouped kernel with a role ``gatherer`` (two warps of the blocks that compute), which hands a ring step over a few steps after it
    was asked for: ``handed(cfg, g, s, task, step)``; ``cfg.gathers``: how many steps may be on their way meanwhile."""

    @classmethod
    def roles(kernel, cfg):
        """With the gatherer."""
        return {**super().roles(cfg), "gatherer": Role("gatherer", "warp", WARPS, beside=True)}

    @classmethod
    def driver(kernel, role):
        """The gatherer has the tasks of its block, and hands over what is left when there are no more."""
        return (lambda play, _: gathering(kernel, play)) if role.name == "gatherer" else super().driver(role)


def gathering(kernel, play):
    """As ``groups.together``; then the last steps, which no later one hands over."""
    def drive(cfg, g, s, part, place, places):
        block, blocks = div(place, WARPS), div(places, WARPS)
        spot = i32(0), i32(0), kernel.end(cfg, g, i32(0), i32(0)), i32(0)
        steps = i32(0)
        for turn in range(kernel.turns(cfg, g)):
            number = kernel.number(cfg, g, i32(turn), block, blocks)
            spot = kernel.advance(cfg, g, number, *spot)
            if spot[0] >= g.groups:
                break
            play(cfg, g, s, kernel.task(cfg, g, number, i32(turn), part, spot))
            steps = i32(steps + g.k_tiles)
        last = Task(i32(0), i32(0), part, i32(0), steps)
        gather_wait(0)
        for step in range(most(0, steps - cfg.gathers), steps):
            kernel.handed(cfg, g, s, last, step)
    return drive
