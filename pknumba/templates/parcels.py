"""Parcels: collectives of little data, which every rank sends in packets to whoever reads them: no copy, no handshake, one trip."""

from ..tiles import ITEMSIZE
from .comm import Packets
from .geometry import UNIT


class Parcels(Packets):
    """A kernel declares ``communicator`` (a warp), which sends a piece of 32 units of this rank's boxes and takes what the others sent.

    It is the ``small`` of the kernel whose operator, form and box it has. Tensors: X and Y are this rank's; ``inbox`` is symmetric.
    """

    tensors, symmetric = ("X", "inbox", "Y"), ("inbox",)
    numbers = {"box": 5, "pieces": 1}

    @classmethod
    def values(kernel, call):
        """Pieces of 32 units."""
        return dict(box=call.box.numbers, pieces=-(-call.box.numbers[-1] // 32))

    @classmethod
    def views(kernel, call, x, out, y):
        """Two arrays and the inbox: two halves, each with two packets for every unit of a box's pieces from every rank; zeros at first."""
        world, kept, units = call.world, call.workspace.kept, -(-call.box.numbers[-1] // 32) * 32
        if units not in kept:
            every = 2 * world.size * units
            if world.executor == "gpu":
                kept[units] = world.counters(f"{call.name}.inbox", 2 * every * UNIT // 4)
            else:
                kept[units] = world.symmetric((every * UNIT // ITEMSIZE[call.dtype],), call.dtype)
        return dict(X=call.private(call.x, call.box.x), inbox=call.shared(kept[units], ((0, 0, 0), 0)), Y=call.private(y, call.box.y))
