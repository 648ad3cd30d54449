"""Gather: out = concatenate((x_0, x_1, ...), axis) on one rank."""

from ..primitives import copy_box, mod
from ..templates import Comm, communicate, repeated
from ..templates.collected import root_of
from .all_gather import AllGather


class Gather(Comm):
    """The root reads everyone's array; the array of a rank is a slot of the result."""

    operator, rooted = "gather", True

    @staticmethod
    def communicator(cfg, g, s, task):
        if g.rank == g.root:
            for i in range(g.world_size):
                peer = mod(g.rank + i, g.world_size)
                copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, peer, 0, peer)

    @classmethod
    def form(kernel, size, shape, root, axis):
        """As in all_gather."""
        root_of(kernel.operator, root, size)
        return AllGather.form.__func__(kernel, size, shape, axis)

    @classmethod
    def receives(kernel, rank, root, axis):
        """The root."""
        return rank == root


@repeated("x", "out")
def gather(world, x, *, root=0, axis=0, out=None, config=None, stream=None):
    """out = the arrays of all ranks one after the other along an axis, on the root; collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype, and with the same root and axis.
        x: array with at least one dimension, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world;
            NumPy on the interpreter, else CuPy, torch or any CUDA array.
        root: rank. axis: dimension of x, possibly counted from the last (negative).
        out: on the root, a contiguous array of x's shape with the ``axis`` times the number of ranks, which shares no memory with
            x; made with x's library if None. Ignored on other ranks.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out on the root (its ``local`` if it is symmetric), None on other ranks. The root reads everyone's x: unless it is
    symmetric it is first copied into symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(Gather, world, x, out, config, stream, root=root, axis=axis)
