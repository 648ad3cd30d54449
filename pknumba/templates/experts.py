"""Groups of rows that come from, or go back to, the ranks' tokens: communicators beside an LCS kernel of groups, and who waits for what.

Rows move in *bands* of tile_m rows from row 0 on, wherever groups begin. A counter of a band grows by the same number in every call,
whatever the router says: who finds rows missing in a band adds them before it does anything else.
"""

from ..config import MoeConfig
from ..primitives import (announce, await_all, await_blocks, check_in, div, i32, keep_epoch, least, look, mod, most, post, signal_all,
                          sync, times, wait_until)
from ..tiles import Role, Task, shared
from .base import Template
from .groups import Grouped


class Experts(Grouped):
    """A Grouped kernel with a role ``communicator`` (warps) on ``cfg.comm_sms`` SMs of their own. Its tasks are errands.

    Numbers: ``bands`` of rows at most; ``slots``: entries of a rank's router table. A task's ``step`` is how many rows there are.
    """

    helper_registers = 64
    numbers = {**Grouped.numbers, "bands": 1, "slots": 1, "blocks": 1}

    @classmethod
    def roles(kernel, cfg):
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", 4 * (cfg.consumers + 1))}

    @classmethod
    def driver(kernel, role):
        """Errands for communicators; loaders tell that they have read which call this is."""
        special = {"communicator": errands, "loader": loading}.get(role.name)
        return (lambda play, _: special(kernel, play)) if special else super().driver(role)

    @staticmethod
    def bands(cfg, g):
        """The counters of bands."""
        raise NotImplementedError

    @staticmethod
    def share(cfg, g):
        """What a row adds to the counter of its band."""
        return i32(1)

    @staticmethod
    def errands(cfg, g, total):
        """How many errands there are for so many rows."""
        raise NotImplementedError

    @staticmethod
    def total(cfg, g):
        """Rows of all groups."""
        return look(g.ends, i32(g.groups - 1)) if g.groups > 0 else i32(0)


class Tokens(Template):
    """What every warp of a device does with this rank's tokens, one after the other, in its role ``communicator``. Nobody is waited for.

    Numbers: ``tokens``; ``top_k``: slots of each.
    """

    config = MoeConfig
    kinds = {"place": "int32"}
    numbers = dict.fromkeys("tasks blocks tokens top_k".split(), 1)

    @staticmethod
    def shared(cfg):
        return shared()

    @classmethod
    def roles(kernel, cfg):
        """Warps, all alike."""
        return {"communicator": Role("communicator", "warp", 16)}

    @classmethod
    def all_counters(kernel):
        """None: nobody is waited for."""
        return ()

    @classmethod
    def registers(kernel, cfg):
        """As launched."""
        return 0, 0

    @classmethod
    def driver(kernel, role):
        """Tokens one after the other."""
        return each


def loading(kernel, play):
    """As ``groups.together``; then this block no longer needs to know which call this is."""
    def drive(cfg, g, s, part, place, places):
        spot = i32(0), i32(0), kernel.end(cfg, g, i32(0), i32(0)), i32(0)
        for turn in range(g.turns):
            number = kernel.number(cfg, g, i32(turn), place, places)
            spot = kernel.advance(cfg, g, number, *spot)
            if spot[0] >= g.groups:
                break
            play(cfg, g, s, kernel.task(cfg, g, number, i32(turn), part, spot))
        post(g.left, 0, g.rank)
    return drive


def each(play, steps):
    """Tasks place, place + places, ..., one for each token of this rank."""
    def drive(cfg, g, s, part, place, places):
        for i in range(place, g.tokens, places):
            play(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, i32(0)))
    return drive


def errands(kernel, play):
    """What bands lack of a whole band; then errands place, place + places, ...; then the end of the call.

    The call is over for a rank when every communicator of every rank has read and written what it shares with it.
    """
    def drive(cfg, g, s, part, place, places):
        total = kernel.total(cfg, g)
        for band in range(i32(div(total, cfg.tile_m) + place), g.bands, places):
            some = most(0, least(cfg.tile_m, total - i32(band * cfg.tile_m)))
            post(kernel.bands(cfg, g), i32(band), g.rank, i32((cfg.tile_m - some) * kernel.share(cfg, g)))
        for i in range(place, kernel.errands(cfg, g, total), places):
            play(cfg, g, s, Task(i32(i), i32(0), part, g.rank, total))
        signal_all(g.finished, g.rank)
        if place == 0:
            for peer in range(g.world_size):
                wait_until(g.finished, i32(peer), i32(g.epoch * places))
            wait_until(g.left, 0, i32(g.epoch * g.blocks))
            keep_epoch(g.finished, g.epoch)
    return drive


def routed(kernel, communicate):
    """Count; meet all blocks of all ranks; deal; meet the same block of all ranks.

    The first meeting is of everybody because what is dealt depends on what all have counted. Tables of this call may be written at
    once: whoever read those of the last call has ended it with a meeting. On one rank that is the end of the launch, and lanes look for a
    block each.
    """
    def drive(cfg, g, s, part, place, places):
        block, blocks = div(place, cfg.warps), div(places, cfg.warps)
        warp, mine = mod(place, cfg.warps), i32(g.rank * blocks + block)
        call, tasks = i32(times(g.counted, mine) + 1), i32((g.experts + 1) * g.stretches)
        for i in range(place, tasks, places):
            kernel.count(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, call))
        sync(s)
        if g.world_size == 1:
            if warp == 0:
                check_in(g.counted, mine)
            for first in range(warp * 32, blocks, cfg.warps * 32):
                await_blocks(g.counted, i32(first), least(32, i32(blocks - first)), call)
        else:
            if warp == 0:
                announce(g.counted, mine)
            for other in range(warp, blocks, cfg.warps):        # each warp waits for some
                await_all(g.counted, i32(other), blocks, call)
        sync(s)
        for i in range(place, tasks, places):
            communicate(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, call))
        if g.world_size > 1:
            sync(s)
            if warp == 0:
                announce(g.dealt, mine)
                await_all(g.dealt, block, blocks, call)
    return drive
