"""All-to-all: rank r gets part r of everyone's x along one axis, and puts the parts one after the other along another."""

from ..primitives import copy_box, mod
from ..templates import Comm, communicate
from ..templates.collected import axis_of, share_of
from ..templates.geometry import Form


class AllToAll(Comm):
    """A rank reads its slot of everyone's array; what it gets from a rank is a slot of the result."""

    operator = "all_to_all"

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):           # every rank begins with itself: the links share the load
            peer = mod(g.rank + i, g.world_size)
            copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, peer, g.rank, peer)

    @classmethod
    def form(kernel, size, shape, scatter_axis, gather_axis):
        """Slots of the input along one axis, of the result along the other."""
        scatter = axis_of(kernel.operator, scatter_axis, shape, "scatter_axis")
        gather = axis_of(kernel.operator, gather_axis, shape, "gather_axis")
        dims = list(shape)
        dims[scatter] = share_of(kernel.operator, shape[scatter], size, shape, scatter)
        out = list(dims)
        out[gather] *= size
        return Form(tuple(out), tuple(dims), (scatter, dims[scatter]), (gather, dims[gather]), size)


def all_to_all(world, x, *, scatter_axis=0, gather_axis=0, out=None, config=None, stream=None):
    """out = concatenate over ranks p of part r of x_p, r being this rank; collective.

    With (scatter_axis, gather_axis) = (2, 1) on arrays (batch, sequence, heads, width) this is the exchange before attention in
    Ulysses, and with (1, 2) the one after it.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array of up to 4 dimensions, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy
            on the interpreter, else CuPy, torch or any CUDA array.
        scatter_axis: dimension of x (negative: counted from the last) whose equal parts go to the ranks in order; a multiple of
            the number of ranks. gather_axis: dimension along which the parts that arrive follow each other, possibly the same.
        out: array of x's shape, that dimension divided and the other multiplied by the number of ranks; made with x's library if
            None. It shares no memory with x.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``.

    Returns: out (its ``local`` if it is symmetric). Ranks read each other's x: unless it is symmetric it is first copied into
    symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(AllToAll, world, x, out, config, stream, scatter_axis=scatter_axis, gather_axis=gather_axis)
