"""GEMM of few tiles and long sums, on all SMs: blocks each multiply a slice of a tile's depth and add up what they have through memory."""

from ..primitives import activate, div, expect, least, load_async, mod, reduce_shares, ring, store_shares, tile_coord, wait
from ..templates import Sliced
from .gemm import Gemm


class SlicedGemm(Gemm):
    """``cfg.slices`` tasks for each tile. The i-th multiplies the i-th slice of the depth; the first of them then each sum and store a
    share of the columns. What the others have for a share is left in ``sums``, a slot for each task and consumer.

    Sums are float32, added in one order: a call gives the same bits each time. All tasks of a tile run at once, since grids are whole
    tiles; a block always has the same slice.
    """

    form, private = Sliced, True
    tensors, kinds, counters = ("A", "B", "C", "sums"), {"sums": "float32"}, ("left",)
    early = Gemm.early
    numbers = {**Gemm.numbers, "blocks": 1}

    @staticmethod
    def locate(cfg, g, task):
        """Row of the tile; column of the share that this block stores, in shares: the last one of the tile if it stores none."""
        row, col = tile_coord(div(task.id, cfg.slices), g.grid, cfg.group_m)
        return row, col * cfg.sharers + least(mod(task.id, cfg.slices), cfg.sharers - 1), 0, None

    @staticmethod
    def loader(cfg, g, s, task):
        col, part = div(task.col, cfg.sharers), mod(task.id, cfg.slices)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            at = part * g.k_tiles + (mod(k + div(part * g.k_tiles, cfg.slices), g.k_tiles) if cfg.stagger else k)
            load_async(s.a[stage], g.A, (task.row, at), s.ab_full[stage])
            load_async(s.b[stage], g.B, (col, at) if cfg.b_transposed else (at, col), s.ab_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):
        acc = Gemm.product(cfg, g, s, task)
        part, first = mod(task.id, cfg.slices), div(task.id, cfg.slices) * cfg.slices * cfg.parts + task.part
        store_shares(g.sums, first + part * cfg.parts, acc, cfg.sharers, part, g.left)
        if part < cfg.sharers:
            total = reduce_shares(acc, g.sums, first, cfg.parts, cfg.slices, cfg.sharers, part, g.left)
            Gemm.panels(cfg, g, s, task, activate(total, cfg.activation))

    @staticmethod
    def storer(cfg, g, s, task):
        if mod(task.id, cfg.slices) < cfg.sharers:
            Gemm.storer(cfg, g, s, task)
