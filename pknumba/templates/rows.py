"""Loops of kernels that communicate and need whole rows: a block has rows block, block + blocks, ... of every rank, all of each.

A task has ``id`` = number of a row, ``turn`` = rows that this block had before, ``part`` = which warp of the block this is, ``step`` =
how many calls there were, this one included.
"""

from ..primitives import announce, await_all, div, i32, mod, sync, tick, times
from ..tiles import Task


def meeting_rows(kernel, communicate):
    """Copy in; ready; communicate; done; finish: as ``comm.exchange``, row by row.

    Warps take turns in which part of a row they have: ``g.owned`` pieces of a row are this rank's, so as many warps work on it, and the
    next ones on the next row.
    """
    def drive(cfg, g, s, part, place, places):
        block, blocks, warp = div(place, cfg.warps), div(places, cfg.warps), mod(place, cfg.warps)
        mine = i32(g.rank * blocks + block)
        epoch = i32(times(g.ready, mine) + 1)
        if cfg.copy_in:
            for row in range(block, g.rows, blocks):
                kernel.copy_in(cfg, g, s, Task(i32(row), i32(0), warp, g.rank, epoch))
        sync(s)
        if warp == 0:
            announce(g.ready, mine)
            await_all(g.ready, block, blocks, epoch)
        sync(s)
        turn = i32(0)
        for row in range(block, g.rows, blocks):
            communicate(cfg, g, s, Task(i32(row), turn, mod(i32(warp + turn * g.owned), cfg.warps), g.rank, epoch))
            turn = i32(turn + 1)
        sync(s)
        if warp == 0:
            announce(g.done, mine)
            await_all(g.done, block, blocks, epoch)
        sync(s)
        for row in range(block, g.rows, blocks):
            kernel.finish(cfg, g, s, Task(i32(row), i32(0), warp, g.rank, epoch))
    return drive


def counted_rows(kernel, communicate):
    """Send all rows; receive and finish them one after the other; count the call: as ``comm.counted``."""
    def drive(cfg, g, s, part, place, places):
        block, blocks, warp = div(place, cfg.warps), div(places, cfg.warps), mod(place, cfg.warps)
        call = i32(times(g.calls, block) + 1)
        for row in range(block, g.rows, blocks):
            kernel.send(cfg, g, s, Task(i32(row), i32(0), warp, g.rank, call))
        for row in range(block, g.rows, blocks):
            communicate(cfg, g, s, Task(i32(row), i32(0), warp, g.rank, call))
            kernel.finish(cfg, g, s, Task(i32(row), i32(0), warp, g.rank, call))
        if warp == 0:                           # of warps that had a row, all have met since they read the counter
            tick(g.calls, block)
    return drive
