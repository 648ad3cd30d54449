"""LCS kernels whose tasks are tiles of groups of rows. Where groups end lies in device memory, so each role finds its tasks itself.

Groups' tiles are numbered one group after the other, and blocks take them in that order: tiles of a group that lie above each other share
its matrix in L2 while they are worked on at the same time. Each turn a block takes its neighbour's place, so that a pattern in the
lengths of tasks, such as every other one short, does not always meet the same block.

The host does not know the groups, on which it depends which tiles are best. So a call may launch two kernels: each finds from the ends how
many waves of tiles both would take, and the one that would take longer does nothing.
"""

from ..primitives import div, i32, least, look, mod, most, tile_coord, turn_first
from ..tiles import GroupTask
from .lcs import LCS


class Grouped(LCS):
    """An LCS kernel with a tensor ``ends``: the row at which each group ends. Roles are given GroupTasks.

    Numbers: ``groups``; ``rows`` of all groups at most; ``cols``: tile columns; ``turns`` that a block has at most; ``sms``: blocks in a
    wave; ``widths``, ``costs`` of this kernel and its rival: tile columns, time of a tile, 0 if there is no rival; ``second``: 1 for the
    one that does nothing if both take as long. Ends that fall, or lie beyond ``rows``, count as the nearest that do not.
    """

    kinds = {"ends": "int32"}
    numbers = {**dict.fromkeys("tasks k_tiles groups rows cols turns sms second".split(), 1),
               **dict.fromkeys("widths costs".split(), 2)}

    @classmethod
    def played(kernel, name, adapt=lambda function: function):
        """The role itself: the drivers say where tasks lie."""
        return adapt(getattr(kernel, name))

    @classmethod
    def driver(kernel, role):
        """Loops over the tasks of this kernel's groups."""
        if role.name in ("loader", "consumer", "storer"):
            return lambda play, _: (together if role.together else in_turns)(kernel, play)
        return super().driver(role)

    @staticmethod
    def end(cfg, g, group, first):
        """Row at which a group that begins with row ``first`` ends."""
        if group >= g.groups:
            return i32(first)
        return i32(least(g.rows, most(look(g.ends, group), first)))

    @staticmethod
    def turns(cfg, g):
        """Turns of a block at most: none if the rival takes less time."""
        if g.costs[1] == 0:
            return i32(g.turns)
        mine, others, first = i32(0), i32(0), i32(0)
        for group in range(g.groups):
            end = Grouped.end(cfg, g, i32(group), first)
            mine = i32(mine + div(end - first + cfg.tile_m - 1, cfg.tile_m))
            others = i32(others + div(end - first + cfg.rival_m - 1, cfg.rival_m))
            first = end
        time = div(mine * g.widths[0] + g.sms - 1, g.sms) * g.costs[0]
        other = div(others * g.widths[1] + g.sms - 1, g.sms) * g.costs[1]
        return i32(g.turns * least(1, most(0, other - time - g.second + 1)))

    @staticmethod
    def number(cfg, g, turn, place, places):
        """The task of a block in its turn-th turn."""
        return i32(turn * places + mod(place + turn, places))

    @staticmethod
    def advance(cfg, g, number, group, first, end, before):
        """The group that has a task: (group, its first row, its end, tasks before it), from that of an earlier task on."""
        tiles = i32(div(end - first + cfg.tile_m - 1, cfg.tile_m) * g.cols)
        while group < g.groups and number - before >= tiles:
            group, first, before = i32(group + 1), end, i32(before + tiles)
            end = Grouped.end(cfg, g, group, first)
            tiles = i32(div(end - first + cfg.tile_m - 1, cfg.tile_m) * g.cols)
        return group, first, end, before

    @staticmethod
    def task(cfg, g, number, turn, part, spot):
        """The GroupTask of a number. Tiles that lie above each other have as many units of rows, or one less: unequal ones would drift
        apart, and each would read the group's matrix from memory."""
        group, first, end, before = spot
        tiles, unit = div(end - first + cfg.tile_m - 1, cfg.tile_m), cfg.unit_m
        row, col = tile_coord(number - before, (tiles, g.cols), cfg.group_m)
        height = div(div(end - first + unit - 1, unit) + tiles - 1, tiles) * unit
        first = i32(first + row * height)
        end = i32(least(end, first + height))
        return GroupTask(number, turn, part, i32(0), i32(turn * g.k_tiles), i32(0), col, first, None, group, end)


def together(kernel, play):
    """Every worker of the role takes part in each task."""
    def drive(cfg, g, s, part, place, places):
        spot = i32(0), i32(0), kernel.end(cfg, g, i32(0), i32(0)), i32(0)
        for turn in range(kernel.turns(cfg, g)):
            number = kernel.number(cfg, g, i32(turn), place, places)
            spot = kernel.advance(cfg, g, number, *spot)
            if spot[0] >= g.groups:
                break
            play(cfg, g, s, kernel.task(cfg, g, number, i32(turn), part, spot))
    return drive


def in_turns(kernel, play):
    """Each task is given to one of two workers in turn (ping-pong)."""
    def drive(cfg, g, s, part, place, places):
        turn_first(s, part)
        spot = i32(0), i32(0), kernel.end(cfg, g, i32(0), i32(0)), i32(0)
        for turn in range(kernel.turns(cfg, g)):
            number = kernel.number(cfg, g, i32(turn), place, places)
            spot = kernel.advance(cfg, g, number, *spot)
            if spot[0] >= g.groups:
                break
            if mod(turn, 2) == part:
                play(cfg, g, s, kernel.task(cfg, g, number, i32(turn), i32(0), spot))
    return drive
