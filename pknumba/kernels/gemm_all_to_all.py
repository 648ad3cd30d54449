"""GEMM + all-to-all: rank r gets the r-th share of every rank's A @ B along one dimension, one after the other along another."""

from ..config import GemmAllToAllConfig
from ..errors import ShapeError
from ..primitives import div, expect, i32, least, load_async, mod, ring, tile_coord, wait, wait_until
from ..templates import LCSD, ColumnsToColumns, ColumnsToRows, Exchanged, RowsToRows, multiply, repeated
from .gemm import Gemm


class GemmAllToAll(LCSD, Gemm):
    """Each SM stores its tiles where they belong in the result of the rank that gets them."""

    config, form, alone, title = GemmAllToAllConfig, Exchanged, Gemm, "GemmAllToAll"
    symmetric = ("C",)
    numbers = {**Gemm.numbers, "rows": 1, "extra": 1, "group": 1, "blocks": 1}
    helper_registers = 56

    @staticmethod
    def locate(cfg, g, task):
        """Tile after tile of all shares at once; each rank starts with another's and ends with its own."""
        row, col = tile_coord(div(task.id, g.world_size), g.grid, g.group)
        peer = mod(i32(task.id + g.rank + 1), g.world_size)
        return row, col, i32(peer * g.rows + least(peer, g.extra)), peer

    @staticmethod
    def storer(cfg, g, s, task):
        wait_until(g.ready, task.peer, g.epoch)             # the peer has come: it needs no more what it got last time
        Gemm.storer(cfg, g, s, task)


class RowsAndRows(GemmAllToAll):
    """Shares of rows, one below the other."""
    form = RowsToRows


class ColumnsAndRows(GemmAllToAll):
    """Shares of columns, one below the other."""

    form = ColumnsToRows

    @staticmethod
    def loader(cfg, g, s, task):                # one thread; task.first: column of B where the share begins
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            load_async(s.a[stage], g.A, (task.row, k), s.ab_full[stage])
            if cfg.b_transposed:
                load_async(s.b[stage], g.B, (task.col, k), s.ab_full[stage], task.first)
            else:
                load_async(s.b[stage], g.B, (k, task.col), s.ab_full[stage], 0, task.first)


class ColumnsAndColumns(ColumnsAndRows):
    """Shares of columns, one beside the other."""
    form = ColumnsToColumns


class Undefined(GemmAllToAll):
    """For axes that a matrix does not have: every rank is told."""

    class form(Exchanged):
        """No result has a shape."""

        @classmethod
        def result(form, m, n, world):
            """Raises ShapeError."""
            raise ShapeError("GemmAllToAll: scatter_axis or gather_axis is neither 0 nor 1. A product has these dimensions. Pass one "
                             "for each.")


_KERNELS = {(0, 1): GemmAllToAll, (0, 0): RowsAndRows, (1, 0): ColumnsAndRows, (1, 1): ColumnsAndColumns}


@repeated("A", "B", "out")
def gemm_all_to_all(world, A, B, *, scatter_axis=0, gather_axis=1, out=None, config=None, stream=None):
    """concatenate((share of A_0 @ B_0, share of A_1 @ B_1, ...), gather_axis), this rank's share along scatter_axis; collective.

    NumPy, for rank r: ``numpy.concatenate([numpy.array_split(A @ B, size, scatter_axis)[r] for A, B of all ranks], gather_axis)``.
    Ulysses' projections: (0, 1) after attention, whose rows a rank has all of; (1, 0) before it, with a share of the heads for
    each rank.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        A: (M, K) bfloat16, float16 or float32 (as in ``gemm``), rows contiguous. B: (K, N), row-major or the transpose of a row-major
            (N, K), which it must be of float32.
        scatter_axis, gather_axis: 0 or 1.
        out: array of the result's shape and dtype, rows contiguous; made with A's library if None. A SymmetricArray of this world is
            written in place where shares are equal and, for gather_axis 1, have a multiple of 8 columns; any other array costs a copy out
            of symmetric memory that the world keeps for this shape.
        config: GemmAllToAllConfig; chosen by shape if None. stream: as in ``gemm``; to be passed where two streams work at once,
            since calls of one shape share counters.

    Returns: the result (``out``, or its ``local`` if it is symmetric). Each product is rounded once.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return multiply(_KERNELS.get((scatter_axis, gather_axis), Undefined), world, A, B, out, config, stream)
