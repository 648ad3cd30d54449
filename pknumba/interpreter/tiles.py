"""Shared memory of a block: the arena, and the tiles that are views of it."""

from math import prod

import numpy as np

from ..errors import ConfigError, ContractError, ProtocolError
from ..tiles import SHARED_LIMIT
from .report import error
from .shadow import LINE, Shadow
from .task import running

_POISON = {2: (np.uint16, 0x7fc0), 4: (np.uint32, 0x7fc00000), 1: (np.uint8, 0x7f), 8: (np.uint64, 0x7ff8 << 48)}


def dtype_of(name):
    """The NumPy dtype of a tile's dtype name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class Arena:
    """The shared memory of one block."""

    def __init__(self, label):
        self.label, self.bytes, self.shadow = label, np.empty(SHARED_LIMIT, np.uint8), Shadow(label)
        self.written = None

    def initialise(self, cell):
        if not cell.initialised:
            if self.written is None:
                self.written = np.zeros(SHARED_LIMIT, bool)
            self.written[cell.key[4]:cell.key[5]] = cell.initialised = True

    def initialised(self, cell):
        if not cell.initialised and self.written is not None:
            cell.initialised = bool(self.written[cell.key[4]:cell.key[5]].all())
        return cell.initialised


class SharedTile:
    """Bytes [offset, offset + nbytes) of a block's shared memory, seen as an array.

    Attributes:
        shape, dtype, nbytes, name: what it is; ``label`` adds the block to the name.
        array: NumPy view of the bytes (unchecked).
    """

    def __init__(self, arena, offset, shape, dtype, name):
        self.arena, self.offset, self.shape, self.dtype, self.name = arena, offset, tuple(shape), dtype, name
        self.nbytes = prod(self.shape) * dtype.itemsize
        if offset < 0 or offset + self.nbytes > SHARED_LIMIT:
            raise ConfigError(f"tile {name}: bytes {offset} to {offset + self.nbytes} of shared memory. A block has "
                              f"{SHARED_LIMIT}. Use smaller tiles or fewer stages.")
        self.array = arena.bytes[offset:offset + self.nbytes].view(dtype).reshape(self.shape)
        self._flat = arena.bytes[offset:offset + self.nbytes].view(_POISON[dtype.itemsize][0])
        self._parts, self._shares, self._cell = {}, {}, None

    @property
    def label(self):
        return f"{self.name} of {self.arena.label}"

    def __getitem__(self, index):
        key = index if isinstance(index, tuple) else (index,)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = self._part(tuple(int(i) for i in key))
        return part

    def _part(self, key):
        if len(key) > len(self.shape) - 2:
            raise error(ContractError, running(), f"tile {self.name}: index {list(key)} of shape {self.shape}. Only the "
                                                  "dimensions before the last two count tiles. Read the tile into registers to "
                                                  "use its rows.")
        for i, n in zip(key, self.shape):
            if not 0 <= i < n:
                raise error(ProtocolError, running(), f"tile {self.name}: index {list(key)} lies outside shape {self.shape}.")
        rest = self.shape[len(key):]
        first = 0
        for i, n in zip(key, self.shape):
            first = first * n + i
        size = prod(rest) * self.dtype.itemsize
        return SharedTile(self.arena, self.offset + first * size, rest, self.dtype, f"{self.name}[{', '.join(map(str, key))}]")

    def share(self, block, n, parts):
        """The n-th of `parts` equal shares of the rows of this tile, in the memory of `block`."""
        key = block.number, n, parts
        found = self._shares.get(key)
        if found is None:
            rows = self.shape[0] // parts
            at = self.offset + n * rows * self.shape[1] * self.dtype.itemsize
            name = self.name if parts == 1 else f"{self.name} rows {n * rows} to {(n + 1) * rows}"
            found = self._shares[key] = SharedTile(block.arena, at, (rows, self.shape[1]), self.dtype, name)
        return found

    def of(self, block):
        """The tile at the same place in another block."""
        found = self._shares.get(block.number)
        if found is None:
            found = self._shares[block.number] = SharedTile(block.arena, self.offset, self.shape, self.dtype, self.name)
        return found

    @property
    def shadow(self):
        return self.arena.shadow

    def cell(self, session):
        if self._cell is None:
            self._cell = self.shadow.cell((LINE, 0, 0, 1, self.offset, self.offset + self.nbytes))
        return self._cell

    def read(self):
        return self.array.copy()

    def put(self, values):
        self.array[...] = np.asarray(values).reshape(self.shape)

    def poison(self):
        """Fill with NaN (or an absurd integer), so that whoever reads too early computes nonsense."""
        self._flat.fill(_POISON[self.dtype.itemsize][1])
