"""GEMM of few tiles and long sums: the blocks of a cluster each multiply a part of a tile's depth, and add up what they have."""

from ..primitives import arrive, div, expect, fence_async, least, load, load_async, mod, ring, send_async, store, tile_coord, wait
from ..tiles import Semaphore, Tile, shared
from .gemm import Gemm


class SplitGemm(Gemm):
    """A cluster for each tile. Block b of it multiplies the b-th part of the depth; the first of them then each sum and store a share of
    the columns, ``sums`` being first the shares that a block sends, then those of one share that it receives.

    Sums are float32, added in the order of the blocks: a call gives the same bits each time.
    """

    @staticmethod
    def shared(cfg):
        whole = Gemm.shared(cfg)._replace(ab_empty=Semaphore(cfg.stages, by="consumer"))
        return shared(
            **whole._asdict(),
            sums=Tile((cfg.sharers + cfg.cluster, cfg.parts, cfg.part_m, cfg.share_n), "float32", cfg.sum_swizzle, over="a, b"),
            drained=Semaphore(1, by="consumer", of="cluster"), sent=Semaphore(1, by="consumer"),
            received=Semaphore(cfg.cluster, by="storer"), taken=Semaphore(1, by="consumer", of="cluster"))

    @staticmethod
    def locate(cfg, g, task):
        """Row of the tile; column of the share that this block stores, in shares: the last one of the tile if it stores none."""
        row, col = tile_coord(div(task.id, cfg.cluster), g.grid, cfg.group_m)
        return row, col * cfg.sharers + least(mod(task.id, cfg.cluster), cfg.sharers - 1), 0, None

    @staticmethod
    def loader(cfg, g, s, task):
        _, turn = ring(task.turn, 1)
        wait(s.taken[0], turn ^ 1)              # the sums of the tile before lay over this ring
        col, first = div(task.col, cfg.sharers), mod(task.id, cfg.cluster) * g.k_tiles
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            load_async(s.a[stage], g.A, (task.row, first + k), s.ab_full[stage])
            load_async(s.b[stage], g.B, (col, first + k) if cfg.b_transposed else (first + k, col), s.ab_full[stage])

    @staticmethod
    def added(cfg, g, s, task):
        """A consumer's part of this block's share: what all blocks have sent, added in their order."""
        _, turn = ring(task.turn, 1)
        wait(s.received[0], turn)
        total = load(s.sums[cfg.sharers, task.part])
        for block in range(1, cfg.cluster):
            wait(s.received[block], turn)
            total = total + load(s.sums[cfg.sharers + block, task.part])
        return total

    @staticmethod
    def consumer(cfg, g, s, task):
        acc = Gemm.product(cfg, g, s, task)
        _, turn = ring(task.turn, 1)
        arrive(s.drained[0])
        wait(s.drained[0], turn)                # nobody in the cluster multiplies: sums may lie over every ring
        for share in range(cfg.sharers):
            store(s.sums[share, task.part], acc, share)
        fence_async(s.sums)
        arrive(s.sent[0])
        if mod(task.id, cfg.cluster) < cfg.sharers:
            Gemm.panels(cfg, g, s, task, SplitGemm.added(cfg, g, s, task))
        arrive(s.taken[0])                      # by everyone: what each has sent was read, too

    @staticmethod
    def storer(cfg, g, s, task):
        _, turn = ring(task.turn, 1)
        mine = mod(task.id, cfg.cluster)
        wait(s.sent[0], turn)
        if mine < cfg.sharers:
            for block in range(cfg.cluster):
                expect(s.received[block], s.sums[cfg.sharers + block])
        for share in range(cfg.sharers):
            send_async(s.sums[cfg.sharers + mine], s.sums[share], share, s.received[mine])
        if mine < cfg.sharers:
            Gemm.storer(cfg, g, s, task)
