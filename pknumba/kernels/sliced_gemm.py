"""GEMM of few tiles and long sums, on all SMs: blocks each multiply a slice of a tile's depth and add up what they have through memory."""

from ..primitives import (activate, div, i32, least, load_async, load_multicast, mod, reduce_shares, shares_phase, store_shares,
                          tile_coord)
from ..templates import Sliced
from .gemm import Gemm


class SlicedGemm(Gemm):
    """``cfg.slices`` tasks for each tile. The i-th multiplies the i-th slice of the depth; the first of them then each sum and store a
    share of the columns. What the others have for a share is left in ``sums``, a slot for each task and consumer.

    Sums are float32, added in one order: a call gives the same bits each time. All tasks of a tile run at once, since grids are whole
    tiles.
    """

    form, private = Sliced, True
    tensors, kinds, counters = ("A", "B", "C", "sums"), {"sums": "float32"}, ("left",)
    early = Gemm.early
    numbers = {**Gemm.numbers, "blocks": 1}

    @staticmethod
    def share(cfg, g, task):
        """(tile, slice) of a task. The blocks of a grid have as many tiles at once as they can: first all of these have the first slice,
        then the second. Neighbours have the same slice of tiles beside each other, so that what they load comes from the L2 once."""
        most = div(g.blocks, cfg.slices)
        turn = div(task.id, g.blocks)
        tiles = least(most, i32(div(g.tasks, cfg.slices) - turn * most))
        number = i32(task.id - turn * g.blocks)
        return i32(turn * most + mod(number, tiles)), div(number, tiles)

    @staticmethod
    def locate(cfg, g, task):
        """Row of the tile; column of the share that this block stores, in shares: the last one of the tile if it stores none."""
        tile, part = SlicedGemm.share(cfg, g, task)
        row, col = tile_coord(tile, g.grid, cfg.group_m)
        return row, col * cfg.sharers + least(part, cfg.sharers - 1), 0, None

    @staticmethod
    def depth(cfg, g, part, k):
        """Place in the depth of a slice's k-th stage."""
        return part * g.k_tiles + (mod(k + div(part * g.k_tiles, cfg.slices), g.k_tiles) if cfg.stagger else k)

    @staticmethod
    def fetch(cfg, g, s, task, k, stage):
        col, at = div(task.col, cfg.sharers), SlicedGemm.depth(cfg, g, SlicedGemm.share(cfg, g, task)[1], k)
        load_async(s.a[stage], g.A, (task.row, at), s.ab_full[stage])
        load_multicast(s.b[stage], g.B, (col, at) if cfg.b_transposed else (at, col), s.ab_full[stage])

    @staticmethod
    def loader(cfg, g, s, task):
        for k in range(g.k_tiles):
            SlicedGemm.fetch(cfg, g, s, task, k, Gemm.ready(cfg, g, s, task, k))

    @staticmethod
    def slot(cfg, g, task):
        """(where a consumer's sums lie, its slice)."""
        tile, part = SlicedGemm.share(cfg, g, task)
        return i32((tile * cfg.slices + part) * cfg.parts + task.part), part

    @staticmethod
    def phase(cfg, g, task):
        """What tells words of this call from those of the last."""
        slot, part = SlicedGemm.slot(cfg, g, task)
        return shares_phase(g.sums, slot, cfg.part_m, cfg.tile_n, cfg.sharers, part, g.left)

    @staticmethod
    def total(cfg, g, task, acc, phase):
        """What a consumer gets of the sums that all tasks of the tile have: its rows of the block's share."""
        slot, part = SlicedGemm.slot(cfg, g, task)
        return reduce_shares(acc, g.sums, i32(slot - part * cfg.parts), cfg.parts, cfg.slices, cfg.sharers, part, phase, g.left)

    @staticmethod
    def leave(cfg, g, task, acc, phase):
        """A consumer's sums to the others of the tile, but for its own share."""
        slot, part = SlicedGemm.slot(cfg, g, task)
        store_shares(g.sums, slot, acc, cfg.sharers, part, phase, g.left)

    @staticmethod
    def consumer(cfg, g, s, task):
        phase = SlicedGemm.phase(cfg, g, task)
        acc = Gemm.product(cfg, g, s, task)
        SlicedGemm.leave(cfg, g, task, acc, phase)
        if SlicedGemm.share(cfg, g, task)[1] < cfg.sharers:
            Gemm.panels(cfg, g, s, task, activate(SlicedGemm.total(cfg, g, task, acc, phase), cfg.activation))

    @staticmethod
    def storer(cfg, g, s, task):
        if SlicedGemm.share(cfg, g, task)[1] < cfg.sharers:
            Gemm.storer(cfg, g, s, task)
