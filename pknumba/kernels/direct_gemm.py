"""GEMM whose consumers store what they have by themselves: none waits for a storer, or for the rows of another consumer."""

from ..primitives import activate, div, follow, least, mod, prefetch, store_panel
from ..templates import Direct
from ..tiles import Semaphore, Tile, shared
from .gemm import Gemm
from .sliced_gemm import SlicedGemm


class DirectGemm(Direct, Gemm):
    """Each consumer has ``cfg.c_stages`` panels of 64 rows of its own, through which its sums get into the order of memory."""

    early, follows = Gemm.early, True

    @staticmethod
    def shared(cfg):
        return shared(
            a=Tile((cfg.stages, cfg.parts, cfg.part_m, cfg.tile_k), cfg.dtype, cfg.a_swizzle),
            b=Tile((cfg.stages, *cfg.b_shape), cfg.dtype, cfg.b_swizzle),
            c=Tile((cfg.consumers, cfg.c_stages, 64, cfg.panel_n), cfg.dtype, cfg.c_swizzle),
            ab_full=Semaphore(cfg.stages, by="loader"), ab_empty=Semaphore(cfg.stages, by="consumer", of="cluster"))

    @staticmethod
    def loader(cfg, g, s, task):
        for k in range(g.k_tiles):
            stage = Gemm.ready(cfg, g, s, task, k)
            if k == 0:
                DirectGemm.ahead(cfg, g, s, task)
                follow(s)
            Gemm.fetch(cfg, g, s, task, k, stage)

    @staticmethod
    def ahead(cfg, g, s, task):
        """The first stages to the L2, while the kernel before ends."""
        if task.turn == 0:
            for k in range(least(cfg.ahead, g.k_tiles)):
                at = mod(k + task.col, g.k_tiles) if cfg.stagger else k
                prefetch(s.a[0], g.A, (task.row, at), task.first)
                prefetch(s.b[0], g.B, (task.col, at) if cfg.b_transposed else (at, task.col))

    @staticmethod
    def outward(cfg, g, s, task, acc):
        """A consumer's sums to the output, by itself."""
        own = mod(task.turn, 2) if cfg.ping_pong else task.part
        for p in range(cfg.panels):
            store_panel(g.C, (task.row * cfg.parts + task.part, task.col * cfg.panels + p), acc, p, s.c[own])

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup
        acc = activate(Gemm.product(cfg, g, s, task), cfg.activation)
        follow(s)
        DirectGemm.outward(cfg, g, s, task, acc)


class DirectSlicedGemm(Direct, SlicedGemm):
    """The same of a share of a tile's columns."""

    early, follows = Gemm.early, True
    shared = staticmethod(DirectGemm.shared)

    @staticmethod
    def loader(cfg, g, s, task):
        for k in range(g.k_tiles):
            stage = Gemm.ready(cfg, g, s, task, k)
            if k == 0:
                DirectSlicedGemm.ahead(cfg, g, s, task)
                follow(s)
            SlicedGemm.fetch(cfg, g, s, task, k, stage)

    @staticmethod
    def ahead(cfg, g, s, task):
        if task.turn == 0:
            col, part = div(task.col, cfg.sharers), SlicedGemm.share(cfg, g, task)[1]
            for k in range(least(cfg.ahead, g.k_tiles)):
                at = SlicedGemm.depth(cfg, g, part, k)
                prefetch(s.a[0], g.A, (task.row, at))
                prefetch(s.b[0], g.B, (col, at) if cfg.b_transposed else (at, col))

    @staticmethod
    def consumer(cfg, g, s, task):
        follow(s)
        phase = SlicedGemm.phase(cfg, g, task)
        acc = Gemm.product(cfg, g, s, task)
        SlicedGemm.leave(cfg, g, task, acc, phase)
        if SlicedGemm.share(cfg, g, task)[1] < cfg.sharers:
            DirectGemm.outward(cfg, g, s, task, activate(SlicedGemm.total(cfg, g, task, acc, phase), cfg.activation))
