"""Grouped GEMM of rows that lie anywhere: C[row] = A[row of ``source``] @ B[e], for the rows of every group e."""

from ..config import ExpertConfig
from ..primitives import arrive, expect, fence_async, gather_async, gather_wait, load_async, ring, sources, wait
from ..templates import Gathering
from ..tiles import Semaphore, shared
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
    def handed(cfg, g, s, task, step):
        """A step's rows have come: consumers may have them."""
        stage = ring(step, cfg.stages)[0]
        fence_async(s.a[stage])
        arrive(s.ab_full[stage])

    @staticmethod
    def gatherer(cfg, g, s, task):              # two warps: rows of A, global -> shared
        rows = sources(s.a[0], g.source, task.first, task.end, g.top_k)
        for k in range(g.k_tiles):
            step = task.step + k
            stage, phase = ring(step, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            gather_async(s.a[stage], g.A, rows, k)
            gather_wait(cfg.gathers)
            if step >= cfg.gathers:
                GatheredGemm.handed(cfg, g, s, task, step - cfg.gathers)
