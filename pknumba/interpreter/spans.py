"""Global memory as bytes: runs of neighbouring elements at any offset, for roles that move boxes of any layout."""

import numpy as np

from ..errors import ProtocolError
from .report import error
from .shadow import LINE
from .task import running


class Strided:
    """An array of one rank and, where it may look, of its peers, addressed by bytes from its first element.

    Args:
        name: for reports.
        arrays: one NumPy array per rank; None where this rank may not look.
        rank: whose it is.
        strides: bytes between neighbours along the three row dimensions of a box (see ``primitives.boxes``).
        step: bytes from one slot to the next.
    """

    def __init__(self, name, arrays, rank, strides=(0, 0, 0), step=0):
        self.name, self.arrays, self.rank, self.world_size = name, list(arrays), rank, len(arrays)
        self.strides, self.step, self.dtype = tuple(strides), step, arrays[rank].dtype
        self._flat = {}

    def __repr__(self):
        return f"Strided({self.name!r}, dtype={self.dtype}, rank {self.rank} of {self.world_size})"

    def span(self, offset, count, peer=None):
        """``count`` elements from byte ``offset`` on, in the memory of rank ``peer`` (None: the own)."""
        peer = self.rank if peer is None else int(peer)
        if not 0 <= peer < self.world_size or self.arrays[peer] is None:
            raise error(ProtocolError, running(), f"tensor {self.name}: rank {self.rank} may not look at the memory of rank {peer} of "
                                                  f"{self.world_size}. Use a symmetric array.")
        flat = self._flat.get(peer)
        if flat is None:
            flat = self._flat[peer] = _flat(self.arrays[peer])
        first = offset // flat.itemsize
        if offset % flat.itemsize or not 0 <= first <= first + count <= flat.size:
            raise error(ProtocolError, running(), f"tensor {self.name}: elements {first} to {first + count} of {flat.size}.")
        return Span(self, flat, peer, first, count)


def _flat(array):
    """The memory from the first to the last element, as one dimension; rows may lie apart."""
    if not array.size:
        return np.empty(0, array.dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, array.strides)) // array.itemsize
    return np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,))


class Span:
    """Neighbouring elements of one rank's memory."""

    __slots__ = ("tensor", "flat", "owner", "first", "count", "shape", "shadow")

    def __init__(self, tensor, flat, owner, first, count):
        self.tensor, self.flat, self.owner, self.first, self.count, self.shape = tensor, flat, owner, first, count, (count,)
        self.shadow = None

    @property
    def name(self):
        return f"{self.tensor.name} of rank {self.owner} [{self.first}:{self.first + self.count}]"

    label = name

    @property
    def dtype(self):
        return self.flat.dtype

    @property
    def nbytes(self):
        return self.count * self.flat.itemsize

    def cell(self, session):
        """The region's cell; None if it is empty."""
        if not self.count:
            return None
        memory = session.memory(self.tensor.arrays[self.owner], f"{self.tensor.name} of rank {self.owner}")
        self.shadow = memory.shadow
        start = self.flat.__array_interface__["data"][0] + self.first * self.flat.itemsize
        return self.shadow.cell((LINE, 0, 0, 1, start, start + self.nbytes))

    def read(self):
        return self.flat[self.first:self.first + self.count].copy()

    def put(self, values):
        self.flat[self.first:self.first + self.count] = np.asarray(values).reshape(-1)
