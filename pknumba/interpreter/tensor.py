"""Global memory: tensors over ranks, and the windows of them that roles move and compute with."""

from math import prod

import numpy as np

from ..errors import LayoutError, ProtocolError
from .report import error
from .shadow import LINE
from .task import running


class Tensor:
    """Global memory of one rank and, where it may look, of its peers.

    Args:
        name: for reports.
        arrays: one NumPy array per rank, all of one shape; None where this rank may not look.
        rank: whose tensor this is.
    """

    def __init__(self, name, arrays, rank):
        self.name, self.arrays, self.rank, self.world_size = name, list(arrays), rank, len(arrays)
        own = arrays[rank]
        self.shape, self.dtype, self._views = own.shape, own.dtype, {}

    def __repr__(self):
        return f"Tensor({self.name!r}, shape={self.shape}, dtype={self.dtype}, rank {self.rank} of {self.world_size})"

    def window(self, coord, shape, peer=None, first_row=0, end_row=None, first_col=0):
        """The window of `shape` at `coord`, which counts windows: rows = prod(shape[:-1]), columns = shape[-1].

        ``first_row`` and ``first_col`` are what coordinate (0, 0) stands for. Coordinates before the last two say which matrix of an
        array of them.

        What lies beyond the array's edge reads as zero and is not written; so does what lies from row ``end_row`` on.
        """
        peer = self.rank if peer is None else int(peer)
        if not 0 <= peer < self.world_size:
            raise error(ProtocolError, running(), f"tensor {self.name}: peer {peer} of a world of {self.world_size}.")
        *outer, row, col = map(int, coord)
        view = self._views.get((peer, *outer))
        if view is None:
            view = self._views[(peer, *outer)] = _View(self, peer, outer)
        rows, cols = prod(shape[:-1]), shape[-1]
        row, col = row * rows + int(first_row), col * cols + int(first_col)
        if int(first_col) * self.dtype.itemsize % 16:
            raise error(ProtocolError, running(), f"tensor {self.name}: first_col = {int(first_col)} of {self.dtype}. The innermost "
                                                  "coordinate of a bulk copy is a multiple of 16 bytes. Begin on one.")
        if row < 0 or col < 0:
            raise error(ProtocolError, running(), f"tensor {self.name}: window {tuple(map(int, coord))} of {tuple(shape)} starts "
                                                  "before the array. Coordinates count windows from 0.")
        return Window(view, row, col, rows, cols, tuple(shape), row + rows if end_row is None else min(row + rows, int(end_row)))


class _View:
    """One rank's array as rows and columns, with what the race checker needs to place it."""

    def __init__(self, tensor, peer, outer=()):
        array = tensor.arrays[peer]
        if array is None:
            raise error(ProtocolError, running(), f"tensor {tensor.name}: rank {tensor.rank} may not look at the memory of rank "
                                                  f"{peer}. Use a symmetric array.")
        self.name = f"{tensor.name}{list(outer) if outer else ''} of rank {peer}"
        self.owner = peer
        if outer:
            if any(not 0 <= i < n for i, n in zip(outer, array.shape)) or len(outer) != array.ndim - 2:
                raise error(ProtocolError, running(), f"tensor {tensor.name}: matrix {list(outer)} of shape {array.shape}. There is no "
                                                      "such matrix. Look at the coordinates.")
            array = array[tuple(outer)]
        flat = array.reshape(1, -1) if array.ndim < 2 else array if array.ndim == 2 else array.reshape(-1, array.shape[-1])
        if array.size and not np.shares_memory(flat, array):
            raise LayoutError(f"tensor {tensor.name}: strides {array.strides} of shape {array.shape} cannot be seen as rows. "
                              "Only the distance of rows may differ from a contiguous array's.")
        self.array, self.rows, self.cols = flat, *flat.shape
        self.shadow = self.grid = self.session = None

    def place(self, session):
        """Find the memory's shadow: the same for every view of the same bytes."""
        a = self.array
        pitch = a.strides[0] if a.shape[0] > 1 else LINE
        if a.shape[1] > 1 and a.strides[1] != a.itemsize or pitch < a.shape[1] * a.itemsize:
            raise LayoutError(f"tensor {self.name}: strides {a.strides}. Rows must be contiguous and must not overlap.")
        address = a.__array_interface__["data"][0]
        self.shadow, self.session = session.memory(a, self.name).shadow, session
        self.grid = (LINE, 0, 0, address) if pitch == LINE else (pitch, address % pitch, address // pitch, 0)


class Window:
    """A rectangle of one rank's global memory, clipped to the array and to rows before ``end``."""

    __slots__ = ("view", "row", "col", "rows", "cols", "shape", "_part")

    def __init__(self, view, row, col, rows, cols, shape, end):
        self.view, self.row, self.col, self.rows, self.cols, self.shape = view, row, col, rows, cols, shape
        self._part = view.array[row:max(row, end), col:col + cols]

    @property
    def name(self):
        return f"{self.view.name} [{self.row}:{self.row + self.rows}, {self.col}:{self.col + self.cols}]"

    label = name

    @property
    def dtype(self):
        return self.view.array.dtype

    @property
    def inside(self):
        """(rows, columns) that lie inside the array."""
        return self._part.shape

    @property
    def nbytes(self):
        return self.rows * self.cols * self.dtype.itemsize

    @property
    def shadow(self):
        return self.view.shadow

    def cell(self, session):
        """The region's cell; None if nothing of the window lies inside the array."""
        rows, cols = self._part.shape
        if not rows or not cols:
            return None
        view = self.view
        if view.session is not session:
            view.place(session)
        pitch, phase, row, column = view.grid
        row, item = row + self.row, self._part.itemsize
        return view.shadow.cell((pitch, phase, row, row + rows, column + self.col * item, column + (self.col + cols) * item))

    def read(self):
        part = self._part
        if part.shape == (self.rows, self.cols):
            return part.copy().reshape(self.shape)
        full = np.zeros((self.rows, self.cols), part.dtype)
        full[:part.shape[0], :part.shape[1]] = part
        return full.reshape(self.shape)

    def put(self, values):
        part = self._part
        part[...] = np.asarray(values).reshape(self.rows, self.cols)[:part.shape[0], :part.shape[1]]
