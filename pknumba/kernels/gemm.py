"""GEMM: C = A @ B. A (M, K) row-major, B (K, N) row-major or the transpose of a row-major (N, K), C (M, N) row-major."""

from ..config import GemmConfig
from ..errors import ConfigError
from ..primitives import (accumulator, activate, arrive, expect, fence_async, load_async, load_multicast, mma, mma_wait, mod, ring, store,
                          store_add_async, store_async, store_async_read_wait, tile_coord, turn_pass, turn_wait, wait)
from ..templates import LCS, Whole, multiply, repeated
from ..tiles import Semaphore, Tile, shared


class Gemm(LCS):
    """Tiles of C over SMs; each SM loads, multiplies and stores at once."""

    config, form = GemmConfig, Whole
    tensors, early = ("A", "B", "C"), ("A", "B")

    @classmethod
    def plain(kernel):
        """Whether a call may choose only what this class plays: all that extends Gemm, whose end may be another."""
        return kernel is not Gemm

    @classmethod
    def for_config(kernel, cfg):
        """SlicedGemm for tiles whose depth is in slices; DirectGemm and DirectSlicedGemm for consumers that store by themselves.

        Raises ConfigError for what extends Gemm: its own roles would not be played.
        """
        if cfg.slices == 1 and not cfg.direct:
            return super().for_config(cfg)
        from .direct_gemm import DirectGemm, DirectSlicedGemm
        from .sliced_gemm import SlicedGemm
        which = (DirectSlicedGemm if cfg.direct else SlicedGemm) if cfg.slices > 1 else DirectGemm
        if kernel is not Gemm and not issubclass(kernel, which):
            raise ConfigError(f"{kernel.__name__}: slices = {cfg.slices}, direct = {cfg.direct}. {which.__name__}, which plays them, has "
                              f"another consumer than what extends Gemm. Use slices = 1 and direct = False, or extend {which.__name__}.",
                              config=cfg)
        return which if kernel is Gemm else kernel

    @staticmethod
    def shared(cfg):
        return shared(
            a=Tile((cfg.stages, cfg.parts, cfg.part_m, cfg.tile_k), cfg.dtype, cfg.a_swizzle),
            b=Tile((cfg.stages, *cfg.b_shape), cfg.dtype, cfg.b_swizzle),
            c=Tile((cfg.c_stages, cfg.parts, cfg.part_m, cfg.panel_n), cfg.dtype, cfg.c_swizzle),
            ab_full=Semaphore(cfg.stages, by="loader"), ab_empty=Semaphore(cfg.stages, by="consumer", of="cluster"),
            c_full=Semaphore(cfg.c_stages, by="consumer"), c_empty=Semaphore(cfg.c_stages, by="storer"),
            c_turn=Semaphore(1, by="consumer"))

    @staticmethod
    def locate(cfg, g, task):
        """Where a task's tile lies: (row, column, first row of A, peer to store to)."""
        row, col = tile_coord(task.id, g.grid, cfg.group_m)
        return row, col, 0, None

    @staticmethod
    def ready(cfg, g, s, task, k):
        """The stage of a task's k-th step, once it is empty; what will be loaded is announced."""
        stage, phase = ring(task.step + k, cfg.stages)
        wait(s.ab_empty[stage], phase ^ 1)
        expect(s.ab_full[stage], s.a[stage], s.b[stage])
        return stage

    @staticmethod
    def emptied(cfg, g, s, step):
        """Waits until every stage is empty, after that many steps."""
        for k in range(cfg.stages):
            stage, phase = ring(step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)

    @staticmethod
    def fetch(cfg, g, s, task, k, stage):
        """Starts the loads of a task's k-th step."""
        at = mod(k + task.col, g.k_tiles) if cfg.stagger else k
        load_async(s.a[stage], g.A, (task.row, at), s.ab_full[stage], task.first)
        load_multicast(s.b[stage], g.B, (task.col, at) if cfg.b_transposed else (at, task.col), s.ab_full[stage])

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: global -> shared
        for k in range(g.k_tiles):
            Gemm.fetch(cfg, g, s, task, k, Gemm.ready(cfg, g, s, task, k))

    @staticmethod
    def product(cfg, g, s, task, rows=None):
        """A consumer's sums: rows task.part of the tile, over all of the depth. ``rows``: of them that matter; None: all."""
        acc = accumulator(cfg.part_m, cfg.tile_n)
        turn_wait(s, task.turn)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_full[stage], phase)
            acc = mma(acc, s.a[stage, task.part], s.b[stage], k > 0, cfg.b_transposed, rows)
            acc = mma_wait(acc, 1)              # the one before is done: give its stage back
            if k > 0:
                arrive(s.ab_empty[ring(task.step + k - 1, cfg.stages)[0]], acc)
        turn_pass(s, task.turn)
        acc = mma_wait(acc, 0)
        arrive(s.ab_empty[ring(task.step + g.k_tiles - 1, cfg.stages)[0]], acc)
        return acc

    @staticmethod
    def panels(cfg, g, s, task, acc):
        """A consumer's sums to the storer, panel by panel."""
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_empty[stage], phase ^ 1)
            store(s.c[stage, task.part], acc, p)
            fence_async(s.c[stage, task.part])
            arrive(s.c_full[stage], s.c[stage, task.part])

    @staticmethod
    def tile(cfg, g, s, task, rows=None):
        """A consumer's part of the tile, from product to panels."""
        acc = activate(Gemm.product(cfg, g, s, task, rows), cfg.activation)
        if cfg.ping_pong:                       # tile after tile: a short loop may be done before the other's panels are out
            _, phase = ring(task.turn, 1)
            wait(s.c_turn[0], phase ^ 1)
        Gemm.panels(cfg, g, s, task, acc)
        if cfg.ping_pong:
            arrive(s.c_turn[0])

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup
        Gemm.tile(cfg, g, s, task)

    @staticmethod
    def storer(cfg, g, s, task):                # one thread: shared -> global
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage], phase)
            if cfg.adds:
                store_add_async(g.C, (task.row, task.col * cfg.panels + p), s.c[stage], task.peer)
            else:
                store_async(g.C, (task.row, task.col * cfg.panels + p), s.c[stage], task.peer)
            store_async_read_wait(cfg.c_flying)
            if p >= cfg.c_flying:                  # read: that panel may be overwritten
                arrive(s.c_empty[ring(task.turn * cfg.panels + p - cfg.c_flying, cfg.c_stages)[0]])
        if cfg.c_flying > 0:
            store_async_read_wait(0)
            for p in range(cfg.panels - cfg.c_flying, cfg.panels):
                arrive(s.c_empty[ring(task.turn * cfg.panels + p, cfg.c_stages)[0]])


@repeated("A", "B", "out")
def gemm(world, A, B, *, out=None, config=None, stream=None):
    """C = A @ B on this rank's device, with float32 accumulation and one rounding.

    Args:
        world: World of this rank (any size: nothing is communicated).
        A: (M, K) bfloat16, float16 or float32, rows contiguous; NumPy on the interpreter, else CuPy, torch or any CUDA array. Of
            float32 the tensor cores multiply the 10 highest bits of the mantissa (tf32): a product errs by up to 2^-9 of its size.
        B: (K, N) of the same dtype, row-major, or the transpose of a row-major (N, K) array, which it must be of float32.
        out: (M, N) of the same dtype, rows contiguous; made with A's library if None.
        config: GemmConfig; chosen by shape if None.
        stream: CUDA stream (address or object of CuPy, torch, cuda.core); the arrays' library's current one if None. Graphs that
            captured products with slices (few tiles, long sums) share memory: do not replay two of them at once.

    Returns: C (M, N). M, N or K may be 0. Arrays whose rows do not start on 16 bytes are copied to padded memory first.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, before anything is launched.
    """
    return multiply(Gemm, world, A, B, out, config, stream)
