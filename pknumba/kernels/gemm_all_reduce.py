"""GEMM + all-reduce: on every rank C = sum over ranks r of A_r @ B_r. C (M, N) is symmetric memory."""

from ..config import GemmAllReduceConfig
from ..primitives import all_reduce, arrive, div, i32, mod, ring, signal, store_async, store_async_wait, tile_coord, wait, wait_until
from ..templates import LCSC, OwnedTiles, multiply, repeated
from .gemm import Gemm
from .gemm_reduce_scatter import GemmReduceScatterInside


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


class GemmAllReduceInside(GemmReduceScatterInside):
    """No SM only communicates: as GemmReduceScatterInside, and owners store their sums to every rank."""

    config, form, title = GemmAllReduceConfig, OwnedTiles, GemmAllReduce.__name__
    tensors, symmetric = ("A", "B", "C", "slots"), ("C", "slots")
    numbers = {**Gemm.numbers, **OwnedTiles.layout}

    @staticmethod
    def locate(cfg, g, task):
        """Tiles in the order of their numbers, from the next rank's on, round."""
        tile = mod(i32(task.id + g.start), g.tasks)
        row, col = tile_coord(tile, g.grid, cfg.group_m)
        return row, col, 0, div(tile, g.per)

    @staticmethod
    def storer(cfg, g, s, task):                # one thread
        if task.id < g.others:
            GemmReduceScatterInside.send(cfg, g, s, task)
        else:
            first = GemmReduceScatterInside.fetched(cfg, g, task)
            GemmReduceScatterInside.vacate(cfg, s, first)
            for step in range(first, first + cfg.panels * g.sources):
                stage, phase = ring(step, cfg.c_stages)
                wait(s.sum_full[stage], phase)
                if mod(step + 1, g.sources) == 0:
                    col = task.col * cfg.panels + GemmReduceScatterInside.panel(cfg, g, step)
                    for peer in range(g.world_size):
                        for part in range(cfg.paced):
                            store_async(g.C, (task.row * cfg.paced + part, col), s.c_parts[stage, part], i32(peer))
                            GemmReduceScatterInside.pace(cfg, g, s, task)
                arrive(s.sum_empty[stage])


GemmAllReduce.inside = GemmAllReduceInside


@repeated("A", "B", "out")
def gemm_all_reduce(world, A, B, *, out=None, config=None, stream=None):
    """C = sum over the ranks r of the world of A_r @ B_r, the same bits on every rank; collective.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        A: (M, K) bfloat16, float16 or float32 (as in ``gemm``), rows contiguous. B: (K, N), row-major or the transpose of a row-major
            (N, K), which it must be of float32.
        out: (M, N) of the same dtype. A SymmetricArray of this world is written in place; any other array, or None, costs
            one copy out of symmetric memory that the world keeps for this shape.
        config: GemmAllReduceConfig; chosen by shape if None, with ``intra_sm``: no SM only communicates. stream: as in ``gemm``; to be
            passed where two streams work at once, since calls of one shape share counters.

    Returns: C (M, N) (``out``, or its ``local`` if it is symmetric). The rank that owns a tile adds to its own product, in float32 and in
    rank order, the others', each rounded once to the dtype, and rounds the sum once. The world keeps symmetric memory of about M * N
    elements on each rank for this shape. Without ``intra_sm`` the owner's product is rounded too, and there is no such memory.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return multiply(GemmAllReduce, world, A, B, out, config, stream)
