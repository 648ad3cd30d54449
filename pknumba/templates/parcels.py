"""Parcels: collectives of little data, which every rank sends in packets to whoever reads them: no copy, no handshake, one trip."""

from ..primitives.packets import PIECE
from .comm import Packets


class Parcels(Packets):
    """A kernel declares ``send`` (a warp), which sends a piece of 96 units of this rank's boxes, and ``communicator``, which takes what the
    others sent of it.

    It is the ``small`` of the kernel whose operator, form and box it has. Tensors: X and Y are this rank's; ``inbox`` is symmetric.
    """

    tensors, symmetric = ("X", "inbox", "Y"), ("inbox",)
    numbers = {"box": 5, "pieces": 1}

    @classmethod
    def values(kernel, call):
        """Pieces of 96 units."""
        return dict(box=call.box.numbers, pieces=-(-call.box.numbers[-1] // PIECE))

    @classmethod
    def views(kernel, call, x, out, y):
        """Two arrays and the inbox."""
        return dict(X=call.private(call.x, call.box.x), inbox=call.inbox(), Y=call.private(y, call.box.y))
