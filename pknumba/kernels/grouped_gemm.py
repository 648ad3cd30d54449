"""Grouped GEMM: C[rows of group e] = A[rows of group e] @ B[e]. Where groups end lies on the device."""

from ..config import GroupedGemmConfig
from ..primitives import arrive, expect, i32, load_async, load_ragged_async, ring, store_async_read_wait, store_ragged_async, wait
from ..templates import Grouped, multiply_groups
from .gemm import Gemm


class GroupedGemm(Grouped, Gemm):
    """A Gemm whose tiles end with their groups."""

    config = GroupedGemmConfig
    tensors = ("A", "B", "C", "ends")
    helper_registers = 56

    @staticmethod
    def rows(cfg, task, part):
        """Rows from a part of the task's tile on; not above 0 if it has none."""
        return i32(task.end - task.first - part * cfg.part_m)

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: global -> shared
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            load_ragged_async(s.a[stage], g.A, (0, k), s.ab_full[stage], task.first, task.end)
            load_async(s.b[stage], g.B, (task.group, task.col, k) if cfg.b_transposed else (task.group, k, task.col), s.ab_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup: rows task.part of the tile, if the group has them
        rows = GroupedGemm.rows(cfg, task, task.part)
        if rows > 0:
            Gemm.tile(cfg, g, s, task, rows)
        else:
            GroupedGemm.idle(cfg, g, s, task)

    @staticmethod
    def idle(cfg, g, s, task):
        """Passes on what a consumer without rows need not multiply."""
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_full[stage], phase)
            arrive(s.ab_empty[stage])
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_empty[stage], phase ^ 1)
            arrive(s.c_full[stage])

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: shared -> global
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage], phase)
            for part in range(cfg.parts):
                if GroupedGemm.rows(cfg, task, part) > 0:
                    store_ragged_async(g.C, (part, task.col * cfg.panels + p), s.c[stage, part], task.first, task.end)
            store_async_read_wait(cfg.c_lag)
            if p >= cfg.c_lag:                  # read: that panel may be overwritten
                arrive(s.c_empty[ring(task.turn * cfg.panels + p - cfg.c_lag, cfg.c_stages)[0]])
        if cfg.c_lag > 0:
            store_async_read_wait(0)
            arrive(s.c_empty[ring(task.turn * cfg.panels + cfg.panels - 1, cfg.c_stages)[0]])


def grouped_gemm(world, A, B, offsets, *, out=None, config=None, stream=None):
    """C[offsets[e - 1]:offsets[e]] = A[offsets[e - 1]:offsets[e]] @ B[e] for every group e, on this rank's device (offsets[-1] means 0).

    Args:
        world: World of this rank (any size: nothing is communicated).
        A: (T, K) bfloat16 or float16, rows contiguous, those of a group one after the other.
        B: (E, K, N) of the same dtype, contiguous; or the transpose, ``x.transpose(0, 2, 1)``, of a contiguous (E, N, K).
        offsets: (E,) int32, contiguous, in the device's memory: the row at which each group ends. The host does not read it. Groups may be
            empty. An offset below the one before it counts as that, one beyond T as T.
        out: (T, N) of the same dtype, rows contiguous; made with A's library if None. Rows of no group are left as they are.
        config: GroupedGemmConfig; chosen by shape if None. stream: as in ``gemm``.

    Returns: C (T, N), summed in float32 and rounded once; the same bits each time.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, before anything is launched.
    """
    return multiply_groups(GroupedGemm, world, A, B, offsets, out, config, stream)
