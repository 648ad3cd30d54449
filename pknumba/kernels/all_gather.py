"""All-gather: out = concatenate((x_0, x_1, ...), axis) on every rank."""

from ..primitives import copy_box, mod, send_box, take_boxes
from ..templates import Comm, Parcels, communicate, repeated
from ..templates.collected import axis_of
from ..templates.geometry import Form
from ..templates.push import Push


class AllGatherParcels(Parcels):
    """Every rank sends its array to all."""

    operator = "all_gather"

    @staticmethod
    def send(cfg, g, s, task):
        send_box(g.inbox, g.X, task.id, g.box, task.step, g.arrived)

    @staticmethod
    def communicator(cfg, g, s, task):
        take_boxes(g.Y, g.inbox, g.X, task.id, g.box, task.step, g.arrived)


class AllGatherPush(Push):
    """Every rank writes its array to everyone's result."""

    operator = "all_gather"

    @staticmethod
    def communicator(cfg, g, s, task):
        copy_box(g.Y, g.X, task.id, g.box, cfg.unroll, g.rank, 0, None, None, True)


class AllGather(Comm):
    """Every rank reads the others' arrays; the array of a rank is a slot of the result."""

    operator, small, push = "all_gather", AllGatherParcels, AllGatherPush

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):           # every rank begins with itself: the links share the load
            peer = mod(g.rank + i, g.world_size)
            copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, peer, 0, peer)

    @classmethod
    def form(kernel, size, shape, axis):
        """Slots along the axis."""
        axis = axis_of(kernel.operator, axis, shape)
        return Form((*shape[:axis], shape[axis] * size, *shape[axis + 1:]), shape, None, (axis, shape[axis]))


@repeated("x", "out")
def all_gather(world, x, *, axis=0, out=None, config=None, stream=None):
    """out = the arrays of all ranks one after the other along an axis; collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array with at least one dimension, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world;
            NumPy on the interpreter, else CuPy, torch or any CUDA array.
        axis: dimension of x, possibly counted from the last (negative).
        out: array of x's shape with the ``axis`` times the number of ranks; made with x's library if None. It shares no memory
            with x.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Small arrays are sent to every rank, in packets that carry their own flags. Larger
    ones are written to every rank's out where that is symmetric, which is fastest. Else ranks read each other's x: unless it is
    symmetric it is first copied into symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(AllGather, world, x, out, config, stream, axis=axis)
