"""GEMM + all-reduce: on every rank C = sum over ranks r of A_r @ B_r. C (M, N) is symmetric memory."""

from ..config import GemmAllReduceConfig
from ..primitives import all_reduce, signal, store_async_wait, wait_until
from ..templates import LCSC, LCSI, multiply
from .gemm import Gemm


class GemmAllReduce(LCSC, Gemm):
    """Compute SMs write partial tiles of C and tell each tile's owner; the owner's communicators add it over ranks."""

    config, alone = GemmAllReduceConfig, Gemm
    counters = ("done",)
    symmetric = ("C",)

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)                     # written to C, not merely read from shared memory
        signal(g.done, task.id, task.owner)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: piece task.part of a tile that this rank owns
        wait_until(g.done, task.id, g.epoch * g.world_size, copies=False)
        all_reduce(g.C, (task.row * cfg.pieces + task.part, task.col), (cfg.piece_m, cfg.tile_n))


class GemmAllReduceInside(LCSI, GemmAllReduce):
    """The same within SMs: two warps of every compute SM add the tiles that this rank owns, with few registers."""

    title, numbers, helper_registers = GemmAllReduce.__name__, {**Gemm.numbers, "blocks": 1}, 56


def gemm_all_reduce(world, A, B, *, out=None, config=None, stream=None):
    """C = sum over the ranks r of the world of A_r @ B_r, the same bits on every rank; collective.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        A: (M, K) bfloat16 or float16, rows contiguous. B: (K, N), row-major or the transpose of a row-major (N, K).
        out: (M, N) of the same dtype. A SymmetricArray of this world is written in place; any other array, or None, costs
            one copy out of symmetric memory that the world keeps for this shape.
        config: GemmAllReduceConfig; chosen by shape if None; with ``intra_sm`` no SM only communicates. stream: as in ``gemm``; to be
            passed where two streams work at once, since calls of one shape share counters.

    Returns: C (M, N) (``out``, or its ``local`` if it is symmetric). Each rank's product is rounded once to the dtype, the
    sum is made in float32 in rank order and rounded once.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    kernel = GemmAllReduceInside if getattr(config, "intra_sm", False) else GemmAllReduce
    return multiply(kernel, world, A, B, out, config, stream)
