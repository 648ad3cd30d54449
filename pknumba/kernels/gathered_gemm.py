"""Grouped GEMM of rows that lie anywhere: C[row] = A[row of ``source``] @ B[e], for the rows of every group e."""

from ..config import ExpertConfig
from ..primitives import (accumulator, activate, arrive, arrive_gathered, expect, fence_gathered, gather_async, load_async, mma, mma_wait,
                          ring, sources, turn_pass, turn_wait, wait)
from ..templates import Gathering
from ..tiles import Semaphore, shared
from .gemm import Gemm
from .grouped_gemm import GroupedGemm


class GatheredGemm(Gathering, GroupedGemm):
    """A GroupedGemm whose row r of A is row source[r] // top_k of a matrix: a token's row, for each of its experts. Nobody copies it
    before: two warps bring it to shared memory piece by piece, while the copy engine brings B."""

    config = ExpertConfig
    tensors = ("A", "B", "C", "ends", "source")
    kinds = {**GroupedGemm.kinds, "source": "int32"}
    numbers = {**GroupedGemm.numbers, "top_k": 1}

    @staticmethod
    def shared(cfg):
        """A stage is full when both have come."""
        declared = GroupedGemm.shared(cfg)._asdict()
        return shared(**{**declared, "ab_full": Semaphore(cfg.stages, by="loader, gatherer")})

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: B, global -> shared
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.b[stage])
            load_async(s.b[stage], g.B, (task.group, task.col, k) if cfg.b_transposed else (task.group, k, task.col), s.ab_full[stage])

    @staticmethod
    def gatherer(cfg, g, s, task):              # two warps: rows of A, global -> shared
        rows = sources(s.a[0], g.source, task.first, task.end, g.top_k)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            gather_async(s.a[stage], g.A, rows, k)
            arrive_gathered(s.ab_full[stage])

    @staticmethod
    def product(cfg, g, s, task, rows):
        """As that of a Gemm; what ordinary threads brought is shown to the tensor cores."""
        acc = accumulator(cfg.part_m, cfg.tile_n)
        turn_wait(s, task.turn)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_full[stage], phase)
            fence_gathered(s.a[stage, task.part])
            acc = mma(acc, s.a[stage, task.part], s.b[stage], k > 0, cfg.b_transposed, rows)
            acc = mma_wait(acc, 1)              # the one before is done: give its stage back
            if k > 0:
                arrive(s.ab_empty[ring(task.step + k - 1, cfg.stages)[0]])
        turn_pass(s, task.turn)
        acc = mma_wait(acc, 0)
        arrive(s.ab_empty[ring(task.step + g.k_tiles - 1, cfg.stages)[0]])
        return acc

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup: rows task.part of the tile, if the group has them
        rows = GroupedGemm.rows(cfg, task, task.part)
        if rows > 0:
            GatheredGemm.tile(cfg, g, s, task, rows)
        else:
            GroupedGemm.idle(cfg, g, s, task)

    @staticmethod
    def tile(cfg, g, s, task, rows):
        """As that of a Gemm, of these rows."""
        acc = activate(GatheredGemm.product(cfg, g, s, task, rows), cfg.activation)
        if cfg.ping_pong:                       # tile after tile
            _, phase = ring(task.turn, 1)
            wait(s.c_turn[0], phase ^ 1)
        Gemm.panels(cfg, g, s, task, acc)
        if cfg.ping_pong:
            arrive(s.c_turn[0])
