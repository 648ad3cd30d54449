"""All-to-all: rank r gets part r of everyone's x along one axis, and puts the parts one after the other along another."""

from ..errors import LayoutError, ShapeError
from ..primitives import copy_box, copy_boxes, entry, i32, mod, send_box, take_boxes
from ..templates import Comm, Parcels, communicate, repeated
from ..templates.collected import axis_of, share_of, splits_of
from ..templates.geometry import Form, Ragged, is_contiguous
from ..templates.push import Push
from ..tiles import ITEMSIZE


class AllToAllParcels(Parcels):
    """Every rank sends each its part."""

    operator = "all_to_all"

    @staticmethod
    def send(cfg, g, s, task):
        for i in range(1, g.world_size):
            peer = mod(g.rank + i, g.world_size)
            send_box(g.inbox, g.X, task.id, g.box, task.step, g.arrived, peer, peer)

    @staticmethod
    def communicator(cfg, g, s, task):
        take_boxes(g.Y, g.inbox, g.X, task.id, g.box, task.step, g.arrived, g.rank)


class AllToAllPush(Push):
    """Every rank writes each its part."""

    operator = "all_to_all"

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):
            peer = mod(g.rank + i, g.world_size)
            copy_box(g.Y, g.X, task.id, g.box, cfg.unroll, g.rank, peer, None, peer)


class AllToAll(Comm):
    """A rank reads its slot of everyone's array; what it gets from a rank is a slot of the result."""

    operator, small, push = "all_to_all", AllToAllParcels, AllToAllPush

    @staticmethod
    def communicator(cfg, g, s, task):
        copy_boxes(g.Y, g.S, task.id, g.box, cfg.unroll, cfg.at_once)

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


class AllToAllRagged(AllToAll):
    """The same for boxes of different sizes, which a table describes."""

    tensors, numbers, small, push = ("X", "S", "Y", "table"), {"pieces": 1}, None, None

    @staticmethod
    def box_of(g, i):
        """The numbers of the i-th box of the table."""
        return (entry(g.table, 6 * i), entry(g.table, 6 * i + 1), entry(g.table, 6 * i + 2), entry(g.table, 6 * i + 3),
                entry(g.table, 6 * i + 4))

    @staticmethod
    def copy_in(cfg, g, s, task):
        """The box for every rank."""
        for peer in range(g.world_size):
            copy_box(g.S, g.X, task.id, AllToAllRagged.box_of(g, peer), cfg.unroll, peer, entry(g.table, 6 * peer + 5))

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):
            peer = mod(g.rank + i, g.world_size)
            number = i32(g.world_size + peer)
            copy_box(g.Y, g.S, task.id, AllToAllRagged.box_of(g, number), cfg.unroll, entry(g.table, 6 * number + 5), g.rank, peer)

    @classmethod
    def form_on(kernel, rank, size, shape, **arguments):
        """Ranks have as much of the gathered dimension as they say, and get their part of the scattered one."""
        s, t, scatter, gather = splits_of(kernel.operator, size, shape, **arguments)
        if s != t and shape[t] != gather[rank]:
            raise ShapeError(f"{kernel.operator}: x has {shape[t]} in dimension {t}, gather_splits says {gather[rank]}. They are equal. "
                             "Count again.")
        out, most = list(shape), list(shape)
        out[s], most[s] = scatter[rank], max(scatter)
        out[t], most[t] = (size * scatter[rank], max(scatter)) if s == t else (sum(gather), max(gather))
        return Form(tuple(out), tuple(most), None, None, size)

    @classmethod
    def common(kernel, shape, scatter_axis, gather_axis, scatter_splits, gather_splits):
        """All but the gathered dimension, where ranks say how much they have of it."""
        axis = axis_of(kernel.operator, gather_axis, shape)
        return shape if gather_splits is None else (*shape[:axis], *shape[axis + 1:])

    @classmethod
    def box(kernel, call, found):
        """Boxes by rank."""
        for info in filter(None, (found.x, found.out)):
            if not is_contiguous(info.shape, info.strides, ITEMSIZE[call.dtype]):
                raise LayoutError(f"{kernel.operator}: an array has rows apart. With splits arrays are contiguous. Pass a contiguous one.")
        s, t, scatter, gather = splits_of(kernel.operator, call.world.size, tuple(found.x.shape), **call.arguments)
        return Ragged(kernel.operator, found.x.shape, found.form.out, (s, t), scatter, gather, call.world.rank, call.dtype)

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """Slots are as large as the largest box: always in memory of the world."""
        return dict(copy_in=True, copy_out=False)

    @classmethod
    def values(kernel, call):
        """Pieces of the largest box."""
        return dict(pieces=-(-call.box.numbers[-1] // (32 * call.cfg.unroll)))

    @classmethod
    def views(kernel, call, x, out, y):
        """And the table."""
        return {**super().views(call, x, out, y), "table": call.table(call.box.table)}


@repeated("x", "out")
def all_to_all(world, x, *, scatter_axis=0, gather_axis=0, scatter_splits=None, gather_splits=None, out=None, config=None, stream=None):
    """out = concatenate over ranks p of part r of x_p, r being this rank; collective.

    With (scatter_axis, gather_axis) = (2, 1) on arrays (batch, sequence, heads, width) this is the exchange before attention in
    Ulysses, and with (1, 2) the one after it.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array of up to 4 dimensions, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy
            on the interpreter, else CuPy, torch or any CUDA array.
        scatter_axis: dimension of x (negative: counted from the last) whose equal parts go to the ranks in order; a multiple of
            the number of ranks. gather_axis: dimension along which the parts that arrive follow each other, possibly the same.
        scatter_splits: extents of the parts, one for each rank, where they are not equal. gather_splits: extents of every rank's x
            in the gathered dimension, where they are not; only for two different axes. Both are the same on all ranks; with one
            of them arrays are contiguous.
        out: array of the result's shape (that of x, the scattered dimension divided and the gathered one multiplied by the number
            of ranks); made with x's library if None. It shares no memory with x.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Small parts are sent to the ranks that get them, in packets that carry their own
    flags. Larger ones are written to those ranks' out where that is symmetric, which is fastest. Otherwise, and with splits, ranks read
    each other's x: unless it is symmetric it is first copied into symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    if scatter_splits is None and gather_splits is None:
        return communicate(AllToAll, world, x, out, config, stream, scatter_axis=scatter_axis, gather_axis=gather_axis)
    splits = {name: given and tuple(int(n) for n in given)
              for name, given in (("scatter_splits", scatter_splits), ("gather_splits", gather_splits))}
    return communicate(AllToAllRagged, world, x, out, config, stream, scatter_axis=scatter_axis, gather_axis=gather_axis, **splits)
