"""All-reduce: out = x_0 + x_1 + ... (or min, or max) on every rank."""

from ..errors import ConfigError, UnsupportedError
from ..primitives import copy_box, i32, mod, reduce_box, reduce_boxes, send_box
from ..templates import Comm, Parcels, communicate, repeated
from ..templates.agreement import links
from ..templates.comm import sent_at_once
from ..templates.geometry import Box, Form
from ..templates.push import Push
from ..tiles import ITEMSIZE


class AllReducePush(Push):
    """Two shots: every rank writes each its share, to memory of the world; a rank combines what it got, and writes that to all.

    Shares are equal boxes of whole units. Nobody else uses that memory, and a call ends with a meeting after all have read it: the next may
    write to it at once.
    """

    operator, in_place, most, combines, again, meets, waves = "all_reduce", True, 4, True, True, False, 4
    tensors, symmetric = ("X", "S", "T", "Y"), ("S", "T")

    @staticmethod
    def communicator(cfg, g, s, task):
        for i in range(g.world_size):           # every rank begins with itself: the links share the load
            peer = mod(g.rank + i, g.world_size)
            copy_box(g.S, g.X, task.id, g.box, cfg.unroll, g.rank, peer, None, peer)

    @staticmethod
    def copy_out(cfg, g, s, task):
        """The piece of every rank, which lies here, to all."""
        reduce_box(g.T, g.S, task.id, g.box, cfg.unroll, cfg.op, g.rank, 0, True, False, None, True, cfg.at_once)

    @staticmethod
    def finish(cfg, g, s, task):
        """That piece of every share to this rank's output."""
        for slot in range(g.world_size):
            copy_box(g.Y, g.T, task.id, g.box, cfg.unroll, slot, slot)

    @classmethod
    def suits(kernel, call):
        """Where ranks have GPUs of their own: over links it is faster to write than to read, and ordinary arrays need no copy."""
        return kernel.shares(call) and links(call.world)

    @staticmethod
    def shares(call):
        """Whether there is a share of whole units for every rank, in arrays without gaps."""
        return call.box.single and call.form_bytes % (16 * call.world.size) == 0

    @classmethod
    def prepare(kernel, call):
        """Boxes are shares from here on."""
        if not kernel.shares(call):
            raise ConfigError(f"{kernel.operator}: algorithm push. Every rank combines an equal share of whole units of 16 bytes, of "
                              "neighbouring elements. Use another algorithm for this shape.")
        share, size = call.box.elements // call.world.size, (ITEMSIZE[call.dtype],)
        call.box = Box(kernel.operator, Form((share,), (share,), (0, share), (0, share), call.world.size), call.dtype, size, size)

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """What came to memory of the world."""
        return dict(copy_out=not out_symmetric)

    @classmethod
    def views(kernel, call, x, out, y):
        """T, where the result is made, is out or memory of the world; S has a slot for what each rank sends."""
        t = call.staging("results") if call.cfg.copy_out else call.shared(out, call.box.y)
        return dict(X=call.private(call.x, call.box.x), S=call.staging("shares"), T=t, Y=call.private(y, call.box.y))


class AllReduce(Comm):
    """Two shots: a rank combines every piece that it owns over all ranks, and writes the result to all of them."""

    operator, in_place, most, combines, push = "all_reduce", True, 4, True, AllReducePush
    tensors, symmetric = ("X", "S", "T", "Y"), ("S", "T")

    @staticmethod
    def copy_in(cfg, g, s, task):
        """Pieces are owned in turn; task.id counts those of each owner."""
        for owner in range(g.world_size):
            copy_box(g.S, g.X, i32(task.id * g.world_size + owner), g.box, cfg.unroll)

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_box(g.T, g.S, i32(task.id * g.world_size + g.rank), g.box, cfg.unroll, cfg.op, 0, 0, True, cfg.multicast, None, False,
                   cfg.at_once)

    @staticmethod
    def copy_out(cfg, g, s, task):
        """The same pieces back."""
        for owner in range(g.world_size):
            copy_box(g.Y, g.T, i32(task.id * g.world_size + owner), g.box, cfg.unroll)

    @classmethod
    def form(kernel, size, shape, op):
        """Every rank has all of it."""
        return Form(shape, shape)

    @classmethod
    def variant(kernel, call, cfg):
        """One shot for few neighbouring elements."""
        few = call.form_bytes * call.world.size <= sent_at_once(call.world)
        if call.box.single and (cfg.algorithm == "one-shot" or few and cfg.algorithm == "auto"):
            return OneShot, OneShot.sized(call, cfg)
        if cfg.multicast and call.world.executor == "gpu":
            raise UnsupportedError("all_reduce: algorithm multimem. It needs memory with a multicast address, which worlds do not make "
                                   "yet. Use another algorithm.")
        read_back = cfg.algorithm == "read-back"
        found, cfg = super().variant(call, cfg)
        return (ReadBack if read_back else found), cfg

    @classmethod
    def work(kernel, call):
        """Units of each owner."""
        return call.box.numbers[-1] // call.world.size

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """Ordinary arrays are not where peers read and write."""
        return dict(copy_in=not x_symmetric, copy_out=not out_symmetric)

    @classmethod
    def values(kernel, call):
        """Pieces of each owner."""
        values = super().values(call)
        return {**values, "pieces": -(-values["pieces"] // call.world.size)}

    @classmethod
    def views(kernel, call, x, out, y):
        """T, where the result is made, is out or memory of the world; S, where terms are read, is x or the same."""
        t = call.staging() if call.cfg.copy_out else call.shared(out, call.box.y)
        s = t if call.cfg.copy_in else call.shared(x, call.box.x)
        return dict(X=call.private(call.x, call.box.x), S=s, T=t, Y=call.private(y, call.box.y))


class ReadBack(AllReduce):
    """Two shots: a rank combines every piece that it owns, then reads the others' from their owners. Links are then never read and written
    at once; ranks that share a card are slower so (benchmarks/results/collectives.jsonl), and over links it has not been timed."""

    again = True

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_box(g.T, g.S, i32(task.id * g.world_size + g.rank), g.box, cfg.unroll, cfg.op, 0, 0, False, False, None, False,
                   cfg.at_once)

    @staticmethod
    def copy_out(cfg, g, s, task):
        """The pieces of every owner; those of this rank lie in Y already where T is not memory of the world."""
        for i in range(g.world_size):           # every rank begins with its own: the links share the load
            owner = mod(g.rank + i, g.world_size)
            if cfg.copy_out or i > 0:
                copy_box(g.Y, g.T, i32(task.id * g.world_size + owner), g.box, cfg.unroll, 0, 0, owner)


class OneShot(Parcels):
    """Every rank sends all it has to all, in packets that need no signal, and combines what it gets."""

    operator, in_place, form = "all_reduce", True, AllReduce.form

    @staticmethod
    def send(cfg, g, s, task):
        send_box(g.inbox, g.X, task.id, g.box, task.step, g.arrived)

    @staticmethod
    def communicator(cfg, g, s, task):
        reduce_boxes(g.Y, g.inbox, g.X, task.id, g.box, task.step, g.arrived, cfg.op)


@repeated("x", "out")
def all_reduce(world, x, *, op="sum", out=None, config=None, stream=None):
    """out = x_0 + x_1 + ... over the ranks of the world (or the smallest, or the largest), the same bits on every rank; collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array of any shape, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy on the
            interpreter, else CuPy, torch or any CUDA array.
        op: "sum", "min" or "max".
        out: array like x, possibly x itself; made with x's library if None.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Floating-point numbers are combined in float32 in rank order (by the switch
    in an order of its own, with algorithm "multimem", which no device runs yet) and rounded once; integers wrap. Small arrays
    are sent to every rank at once, in packets that carry their own flags. Larger ones are combined by their owners, who read them;
    then x is copied into symmetric memory that the world keeps unless it is symmetric, and the result is copied out of it unless
    out is. If every rank has a GPU of its own and an equal share of whole units, owners are sent what they combine instead.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(AllReduce, world, x, out, config, stream, op=op)
