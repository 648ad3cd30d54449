"""GEMM + reduce-scatter: rank r gets its share of the rows of the sum over ranks s of A_s @ B_s, in ordinary memory."""

from ..config import GemmReduceScatterConfig, hides_adds
from ..errors import ConfigError
from ..primitives import div, i32, least, mod, reduce, signal, store_async_wait, take, tile_coord, wait_until
from ..templates import LCSC, Added, Scattered, multiply
from .gemm import Gemm


class GemmReduceScatter(LCSC, Gemm):
    """Compute SMs store partial tiles to the rank that owns them, each source in a slot of its own; the owner's communicators add
    the slots in rank order, in float32."""

    config, form, alone = GemmReduceScatterConfig, Scattered, Gemm
    tensors, symmetric, counters = ("A", "B", "C", "parts", "out"), ("C", "parts"), ("done",)
    numbers = {**Gemm.numbers, "rows": 1, "extra": 1, "group": 1}
    helper_registers = 48

    @staticmethod
    def locate(cfg, g, task):
        """Tile after tile of all shares at once; each rank starts with another's and ends with its own."""
        row, col = tile_coord(div(task.id, g.world_size), g.grid, g.group)
        peer = mod(i32(task.id + g.rank + 1), g.world_size)
        return row, col, i32(peer * g.rows + least(peer, g.extra)), peer

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)                     # written at the peer, not merely read from shared memory
        signal(g.done, div(task.id, g.world_size), task.peer)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: piece task.part of the task.turn-th tile of this rank's share
        wait_until(g.done, task.turn, g.epoch * g.world_size, copies=False)
        place = task.row * cfg.pieces + task.part, task.col
        reduce(g.parts, place, (cfg.piece_m, cfg.tile_n), g.out, place)


class GemmReduceScatterAdd(GemmReduceScatter):
    """Compute SMs add partial tiles to the owner's memory; its communicators take the sum and leave zero."""

    form, title = Added, GemmReduceScatter.__name__

    @classmethod
    def defaults(kernel):
        """Adds."""
        return kernel.config(adds=True)

    @staticmethod
    def communicator(cfg, g, s, task):
        wait_until(g.done, task.turn, g.epoch * g.world_size, copies=False)
        take(g.parts, (task.row * cfg.pieces + task.part, task.col), (cfg.piece_m, cfg.tile_n), g.out)


class Undefined(GemmReduceScatter):
    """For sums that there are not: every rank is told."""

    class form(Scattered):
        """No result has a shape."""

        @classmethod
        def result(form, m, n, world):
            """Raises ConfigError."""
            raise ConfigError("GemmReduceScatter: sums is neither \"float32\" nor \"any\". It says where sums may be rounded. Pass one.")


def _kernel(A, sums, config):
    """The kernel that a call asks for."""
    if config is not None:
        return GemmReduceScatterAdd if getattr(config, "adds", False) else GemmReduceScatter
    if sums not in ("float32", "any"):
        return Undefined
    shape = getattr(A, "shape", ())             # of what is no matrix: the check says so
    return GemmReduceScatterAdd if sums == "any" and len(shape) == 2 and hides_adds(shape[1], 2) else GemmReduceScatter


def gemm_reduce_scatter(world, A, B, *, sums="float32", out=None, config=None, stream=None):
    """This rank's share of the rows of C = sum over the ranks r of the world of A_r @ B_r; collective.

    ``numpy.array_split(C, world.size)[world.rank]``: whole rows in order, the first M % size ranks one more than the others.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        A: (M, K) bfloat16 or float16, rows contiguous. B: (K, N), row-major or the transpose of a row-major (N, K).
        sums: "float32": made in float32 in rank order, and rounded once. "any": also, where K hides it (K >= s R / (2 B): bytes of an
            element, FLOP/s, bytes per second of a link), added at the owner by the copy engine, rounded each time and in any order.
        out: (rows of this rank, N) of the same dtype, any memory of this rank, rows contiguous; made with A's library if None.
        config: GemmReduceScatterConfig; chosen by shape if None, else it alone says how sums are made (``adds``). stream: as in
            ``gemm``; to be passed where two streams work at once, since calls of one shape share counters.

    Returns: this rank's rows of C. Each rank's product is rounded once to the dtype, the sum is made in float32 in rank order
    and rounded once. The world keeps symmetric memory of M * N elements on each rank for this shape. With ``config.adds`` the sum
    is rounded at each of its world.size additions, in any order, in M * N / world.size elements of symmetric memory.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return multiply(_kernel(A, sums, config), world, A, B, out, config, stream)
