"""Reduce-scatter: out = rank's share of x_0 + x_1 + ... (or min, or max) along an axis."""

from ..primitives import copy_box, mod, reduce_box, reduce_boxes, send_box
from ..templates import Comm, Parcels, communicate, repeated
from ..templates.agreement import links
from ..templates.collected import axis_of, share_of
from ..templates.geometry import Form
from ..templates.push import Push

#: Bytes of a rank's share from which on symmetric arrays are written too, and of the array up to which: memory of the world is as large.
WRITTEN, ROOM = 256 << 20, 2 << 30


class ReduceScatterParcels(Parcels):
    """Every rank sends each its share, and combines what it gets."""

    operator = "reduce_scatter"

    @staticmethod
    def send(cfg, g, s, task):
        for i in range(1, g.world_size):
            peer = mod(g.rank + i, g.world_size)
            send_box(g.inbox, g.X, task.id, g.box, task.step, g.arrived, peer, peer)

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_boxes(g.Y, g.inbox, g.X, task.id, g.box, task.step, g.arrived, cfg.op, g.rank)


class ReduceScatterPush(Push):
    """Every rank writes each its share, to memory of the world, and combines what it got."""

    operator, most, combines, waves = "reduce_scatter", 4, True, 8
    tensors, symmetric = ("X", "S", "Y"), ("S",)

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):
            peer = mod(g.rank + i, g.world_size)
            copy_box(g.S, g.X, task.id, g.box, cfg.unroll, g.rank, peer, None, peer)

    @staticmethod
    def copy_out(cfg, g, s, task):
        """The piece of every rank, which lies here."""
        reduce_box(g.Y, g.S, task.id, g.box, cfg.unroll, cfg.op, 0, 0, False, False, None, True, cfg.at_once)

    @classmethod
    def suits(kernel, call):
        """Over links, for ordinary arrays, which need no copy then, and for large ones, of which some blocks combine what came while others
        write. Other symmetric ones are read in less time."""
        large = WRITTEN <= call.form_bytes <= ROOM // call.world.size
        return links(call.world) and (large or not call.x_symmetric)

    @classmethod
    def prepare(kernel, call):
        """Any call will do."""

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """What came is combined on the way out."""
        return dict(copy_out=True)

    @classmethod
    def views(kernel, call, x, out, y):
        """Two arrays, and a slot for every rank."""
        return dict(X=call.private(call.x, call.box.x), S=call.staging(), Y=call.private(y, call.box.y))


class ReduceScatter(Comm):
    """A rank reads its share, a slot of everyone's array, and combines it in rank order."""

    operator, most, combines, small, push = "reduce_scatter", 4, True, ReduceScatterParcels, ReduceScatterPush

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_box(g.Y, g.S, task.id, g.box, cfg.unroll, cfg.op, 0, g.rank, False, False, None, False, cfg.at_once)

    @classmethod
    def form(kernel, size, shape, op, axis):
        """Slots along the axis."""
        axis = axis_of(kernel.operator, axis, shape)
        share = share_of(kernel.operator, shape[axis], size, shape, axis)
        out = *shape[:axis], share, *shape[axis + 1:]
        return Form(out, out, (axis, share), None, size)


@repeated("x", "out")
def reduce_scatter(world, x, *, op="sum", axis=0, out=None, config=None, stream=None):
    """out = this rank's share of x_0 + x_1 + ... over the ranks (or of the smallest, or the largest); collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array with at least one dimension, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world;
            NumPy on the interpreter, else CuPy, torch or any CUDA array.
        op: "sum", "min" or "max".
        axis: dimension of x (negative: counted from the last), a multiple of the number of ranks; rank r gets the r-th of its
            equal parts.
        out: array of that part's shape; made with x's library if None. It shares no memory with x.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Floating-point numbers are combined in float32 in rank order and rounded
    once; integers wrap. Small parts are sent to the ranks that get them, in packets that carry their own flags. Of larger ones ranks
    read each other's x if it is symmetric. Otherwise, and for arrays of 0.5 to 2 GiB of two ranks, parts are written to symmetric memory
    that the world keeps, if every rank has a GPU of its own, or x is first copied into such memory.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(ReduceScatter, world, x, out, config, stream, op=op, axis=axis)
