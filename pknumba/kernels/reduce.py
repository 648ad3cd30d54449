"""Reduce: out = x_0 + x_1 + ... (or min, or max) on one rank."""

from ..primitives import reduce_box
from ..templates import Comm, communicate, repeated
from ..templates.collected import root_of
from ..templates.geometry import Form


class Reduce(Comm):
    """The root reads everyone's array and combines it in rank order."""

    operator, in_place, rooted, most, combines = "reduce", True, True, 4, True

    @staticmethod
    def communicator(cfg, g, s, task):
        if g.rank == g.root:
            reduce_box(g.Y, g.S, task.id, g.box, cfg.unroll, cfg.op, 0, 0, False, False, None, False, cfg.at_once)

    @classmethod
    def form(kernel, size, shape, op, root):
        """The root has all of it."""
        root_of(kernel.operator, root, size)
        return Form(shape, shape)

    @classmethod
    def receives(kernel, rank, op, root):
        """The root."""
        return rank == root


@repeated("x", "out")
def reduce(world, x, *, op="sum", root=0, out=None, config=None, stream=None):
    """out = x_0 + x_1 + ... over the ranks (or the smallest, or the largest) on the root; collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype, and with the same op and root.
        x: array of any shape, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy on the
            interpreter, else CuPy, torch or any CUDA array.
        op: "sum", "min" or "max". root: rank.
        out: on the root, a contiguous array like x, possibly x itself; made with x's library if None. Ignored on other ranks.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out on the root (its ``local`` if it is symmetric), None on other ranks. Floating-point numbers are combined in
    float32 in rank order and rounded once; integers wrap. The root reads everyone's x: unless it is symmetric it is first copied
    into symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(Reduce, world, x, out, config, stream, op=op, root=root)
