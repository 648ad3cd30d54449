"""Send and receive: out on d = x of s, for pairs (s, d) of ranks."""

from ..errors import WorldError
from ..primitives import copy_box
from ..templates import Comm, communicate, repeated
from ..templates.collected import root_of
from ..templates.geometry import Form


class SendRecv(Comm):
    """A rank reads the array of the one that it receives from; g.root is that rank, -1 for none."""

    operator, rooted = "send_recv", True

    @staticmethod
    def communicator(cfg, g, s, task):
        if g.root >= 0:
            copy_box(g.Y, g.S, task.id, g.box, cfg.unroll, 0, 0, g.root)

    @classmethod
    def form(kernel, size, shape, pairs):
        """Whole arrays. Raises WorldError for pairs that are none, or where a rank receives twice."""
        for pair in pairs:
            if len(pair) != 2:
                raise WorldError(f"{kernel.operator}: pair {pair}. It is (source rank, destination rank). Give two ranks.")
            for rank in pair:
                root_of(kernel.operator, rank, size, "rank of a pair")
        targets = [d for _, d in pairs]
        if len(set(targets)) < len(targets):
            raise WorldError(f"{kernel.operator}: pairs {pairs}. A rank receives from one at most. Make a call for each.")
        return Form(shape, shape)

    @classmethod
    def receives(kernel, rank, pairs):
        """The destinations."""
        return any(d == rank for _, d in pairs)

    @classmethod
    def values(kernel, call):
        """``root``: whom this rank receives from."""
        source = next((s for s, d in call.arguments["pairs"] if d == call.world.rank), -1)
        return {**super().values(call), "root": source}


@repeated("x", "out")
def send_recv(world, x, pairs, *, out=None, config=None, stream=None):
    """out on rank d = x of rank s, for every pair (s, d); collective, all ranks call with the same pairs.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: array of any shape, bfloat16, float16, float32 or int32, contiguous or a SymmetricArray of this world; NumPy on the
            interpreter, else CuPy, torch or any CUDA array. What it holds matters on sources only.
        pairs: sequence of (source, destination) ranks. A rank may send to several and to itself; it receives from one at most.
        out: on destinations, a contiguous array like x that shares no memory with it; made with x's library if None. Ignored
            on other ranks.
        config: CommConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work
            at once, since calls of one form share counters.

    Returns: out on destinations (its ``local`` if it is symmetric), None on other ranks. Ranks read each other's x: unless it is
    symmetric it is first copied into symmetric memory that the world keeps.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    return communicate(SendRecv, world, x, out, config, stream, pairs=tuple(tuple(pair) for pair in pairs))
