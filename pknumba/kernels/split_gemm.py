"""GEMM of few tiles and long sums: the blocks of a cluster each multiply a part of a tile's depth, and add up what they have."""

from ..primitives import (arrive, div, expect, fence_async, load, load_async, mod, ring, send_async, store, tile_coord, wait)
from ..tiles import Semaphore, Tile, shared
from .gemm import Gemm

#: In the tile of sums: those that this block sends, and those that it receives.
OUT, IN = 0, 1


class SplitGemm(Gemm):
    """A cluster for each tile. Block b of it multiplies the b-th part of the depth, then sums and stores the b-th share of the columns.

    Sums are float32, added in the order of the blocks: a call gives the same bits each time.
    """

    @staticmethod
    def shared(cfg):
        whole = Gemm.shared(cfg)._replace(ab_empty=Semaphore(cfg.stages, by="consumer"))
        return shared(
            **whole._asdict(),
            sums=Tile((2, cfg.cluster, cfg.parts, cfg.part_m, cfg.share_n), "float32", cfg.sum_swizzle, over="a, b"),
            drained=Semaphore(1, by="consumer", of="cluster"), sent=Semaphore(1, by="consumer"), received=Semaphore(1, by="storer"),
            taken=Semaphore(1, by="consumer", of="cluster"))

    @staticmethod
    def locate(cfg, g, task):
        """Row of the tile; column of the share that this block stores, in shares."""
        row, col = tile_coord(div(task.id, cfg.cluster), g.grid, cfg.group_m)
        return row, col * cfg.cluster + mod(task.id, cfg.cluster), 0, None

    @staticmethod
    def loader(cfg, g, s, task):
        _, turn = ring(task.turn, 1)
        wait(s.taken[0], turn ^ 1)              # the sums of the tile before lay over this ring
        col, first = div(task.col, cfg.cluster), mod(task.col, cfg.cluster) * g.k_tiles
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            load_async(s.a[stage], g.A, (task.row, first + k), s.ab_full[stage])
            load_async(s.b[stage], g.B, (col, first + k) if cfg.b_transposed else (first + k, col), s.ab_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):
        acc = Gemm.product(cfg, g, s, task)
        _, turn = ring(task.turn, 1)
        arrive(s.drained[0])
        wait(s.drained[0], turn)                # nobody in the cluster multiplies: sums may lie over every ring
        for block in range(cfg.cluster):
            store(s.sums[OUT, block, task.part], acc, block)
        fence_async(s.sums)
        arrive(s.sent[0])
        wait(s.received[0], turn)
        total = load(s.sums[IN, 0, task.part])
        for block in range(1, cfg.cluster):
            total = total + load(s.sums[IN, block, task.part])
        arrive(s.taken[0])                      # by everyone: what each has sent was read, too
        Gemm.panels(cfg, g, s, task, total)

    @staticmethod
    def storer(cfg, g, s, task):
        _, turn = ring(task.turn, 1)
        wait(s.sent[0], turn)
        expect(s.received[0], s.sums[IN])
        for block in range(cfg.cluster):
            send_async(s.sums[IN, mod(task.col, cfg.cluster)], s.sums[OUT, block], block, s.received[0])
        Gemm.storer(cfg, g, s, task)
