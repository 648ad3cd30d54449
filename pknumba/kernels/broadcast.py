"""Broadcast: out = x of one rank, on every rank."""

from ..primitives import copy_box
from ..templates import Comm, communicate, repeated
from ..templates.collected import root_of
from ..templates.geometry import Form


class Broadcast(Comm):
    """Every rank reads the root's array."""

    operator, in_place = "broadcast", True
    numbers = {**Comm.numbers, "apart": 1}

    @staticmethod
    def copy_in(cfg, g, s, task):
        """The root's array only."""
        if g.rank == g.root:
            copy_box(g.S, g.X, task.id, g.box, cfg.unroll)

    @staticmethod
    def communicator(cfg, g, s, task):
        if g.apart > 0:
            copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, 0, 0, g.root)

    @classmethod
    def form(kernel, size, shape, root):
        """Every rank has all of it."""
        root_of(kernel.operator, root, size)
        return Form(shape, shape)

    @classmethod
    def values(kernel, call):
        """``apart``: whether the result is to be written; not where the root's x is its out."""
        here = call.world.rank == call.arguments["root"] and call.in_place
        return {**super().values(call), "apart": 0 if here else 1}


@repeated("x", "out")
def broadcast(world, x, *, root=0, out=None, config=None, stream=None):
    """out = the root's x on every rank; collective.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype, and with the same root.
        x: array of any shape, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy on the
            interpreter, else CuPy, torch or any CUDA array. What it holds matters on the root only.
        root: rank.
        out: array like x, possibly x itself; made with x's library if None.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out (its ``local`` if it is symmetric). Ranks read the root's x: unless it is symmetric it is first copied into
    symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(Broadcast, world, x, out, config, stream, root=root)
