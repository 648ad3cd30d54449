"""Scatter: out = rank's share of one rank's x along an axis."""

from ..primitives import copy_box
from ..templates import Comm, communicate, repeated
from ..templates.collected import axis_of, root_of, share_of
from ..templates.geometry import Form


class Scatter(Comm):
    """A rank reads its share, a slot of the root's array."""

    operator = "scatter"

    @staticmethod
    def copy_in(cfg, g, s, task):
        """The root's array only."""
        if g.rank == g.root:
            Comm.copy_in(cfg, g, s, task)

    @staticmethod
    def communicator(cfg, g, s, task):
        copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, 0, g.rank, g.root)

    @classmethod
    def form(kernel, size, shape, root, axis):
        """Slots along the axis."""
        root_of(kernel.operator, root, size)
        axis = axis_of(kernel.operator, axis, shape)
        share = share_of(kernel.operator, shape[axis], size, shape, axis)
        out = *shape[:axis], share, *shape[axis + 1:]
        return Form(out, out, (axis, share), None, size)

    @classmethod
    def stand_in(kernel, size, rank, shape, root, axis):
        """Shape of x on a rank that gives out, of that shape, alone; None where x must be given."""
        if rank == root or not shape:
            return None
        axis = axis_of(kernel.operator, axis, shape)
        return *shape[:axis], shape[axis] * size, *shape[axis + 1:]


@repeated("x", "out")
def scatter(world, x, *, root=0, axis=0, out=None, config=None, stream=None):
    """out = this rank's share of the root's x; collective.

    Args:
        world: World of this rank; every rank calls with the same root and axis.
        x: on the root, array with at least one dimension, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of
            this world; NumPy on the interpreter, else CuPy, torch or any CUDA array. On other ranks an array like it, of which
            nothing is read; or None where out is given and the root's x is not symmetric.
        root: rank. axis: dimension of x (negative: counted from the last), a multiple of the number of ranks; rank r gets the
            r-th of its equal parts.
        out: array of that part's shape; made with x's library if None. It shares no memory with x.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Ranks read the root's x: unless it is symmetric it is first copied into
    symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(Scatter, world, x, out, config, stream, root=root, axis=axis)
