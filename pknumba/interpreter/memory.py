"""Memory: tiles of a block's shared memory, windows of global memory, and every checked access to either."""

import weakref
from math import prod

import numpy as np

from ..errors import ConfigError, ContractError, LayoutError, ProtocolError
from ..tiles import SHARED_LIMIT
from .report import error, origin, site, where
from .shadow import LINE, Shadow, check, record, unfenced
from .task import current, running

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
            raise ConfigError(f"tile {name}: bytes {offset} to {offset + self.nbytes} of shared memory. A block has {SHARED_LIMIT}. Use "
                              f"smaller tiles or fewer stages.")
        self.array = arena.bytes[offset:offset + self.nbytes].view(dtype).reshape(self.shape)
        self._flat = arena.bytes[offset:offset + self.nbytes].view(_POISON[dtype.itemsize][0])
        self._parts, self._cell = {}, None

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
            raise error(ContractError, running(), f"tile {self.name}: index {list(key)} of shape {self.shape}. Only the dimensions before the last two count "
                                f"tiles. Read the tile into registers to use its rows.")
        for i, n in zip(key, self.shape):
            if not 0 <= i < n:
                raise error(ProtocolError, running(), f"tile {self.name}: index {list(key)} lies outside shape {self.shape}.")
        rest = self.shape[len(key):]
        first = 0
        for i, n in zip(key, self.shape):
            first = first * n + i
        size = prod(rest) * self.dtype.itemsize
        return SharedTile(self.arena, self.offset + first * size, rest, self.dtype, f"{self.name}[{', '.join(map(str, key))}]")

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

    def window(self, coord, shape, peer=None):
        """The window of `shape` at `coord`, which counts windows: rows = prod(shape[:-1]), columns = shape[-1].

        What lies beyond the array's edge reads as zero and is not written.
        """
        peer = self.rank if peer is None else int(peer)
        if not 0 <= peer < self.world_size:
            raise error(ProtocolError, running(), f"tensor {self.name}: peer {peer} of a world of {self.world_size}.")
        view = self._views.get(peer)
        if view is None:
            view = self._views[peer] = _View(self, peer)
        rows, cols = prod(shape[:-1]), shape[-1]
        row, col = int(coord[0]) * rows, int(coord[1]) * cols
        if row < 0 or col < 0:
            raise error(ProtocolError, running(), f"tensor {self.name}: window {tuple(map(int, coord))} of {tuple(shape)} starts before the array. Coordinates "
                                f"count windows from 0.")
        return Window(view, row, col, rows, cols, tuple(shape))


class _View:
    """One rank's array as rows and columns, with what the race checker needs to place it."""

    def __init__(self, tensor, peer):
        array = tensor.arrays[peer]
        if array is None:
            raise error(ProtocolError, running(), f"tensor {tensor.name}: rank {tensor.rank} may not look at the memory of rank {peer}. Use a symmetric array.")
        self.name = f"{tensor.name} of rank {peer}"
        self.owner = peer
        flat = array.reshape(1, -1) if array.ndim < 2 else array.reshape(-1, array.shape[-1])
        if array.size and not np.shares_memory(flat, array):
            raise LayoutError(f"tensor {tensor.name}: strides {array.strides} of shape {array.shape} cannot be seen as rows. Only the "
                              f"distance of rows may differ from a contiguous array's.")
        self.array, self.rows, self.cols = flat, *flat.shape
        self.shadow = self.grid = None

    def place(self, session):
        """Find the memory's shadow: the same for every view of the same bytes."""
        a = self.array
        pitch = a.strides[0] if a.shape[0] > 1 else LINE
        if a.strides[1] != a.itemsize or pitch < a.shape[1] * a.itemsize:
            raise LayoutError(f"tensor {self.name}: strides {a.strides}. Rows must be contiguous and must not overlap.")
        address = a.__array_interface__["data"][0]
        self.shadow = session.memory(a, self.name).shadow
        self.grid = (LINE, 0, 0, address) if pitch == LINE else (pitch, address % pitch, address // pitch, 0)


class Window:
    """A rectangle of one rank's global memory, clipped to the array."""

    __slots__ = ("view", "row", "col", "rows", "cols", "shape", "_part")

    def __init__(self, view, row, col, rows, cols, shape):
        self.view, self.row, self.col, self.rows, self.cols, self.shape = view, row, col, rows, cols, shape
        self._part = view.array[row:row + rows, col:col + cols]

    @property
    def name(self):
        return f"{self.view.name} [{self.row}:{self.row + self.rows}, {self.col}:{self.col + self.cols}]"

    label = name

    @property
    def dtype(self):
        return self.view.array.dtype

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
        if view.shadow is None:
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


class Memory:
    """What a session knows about one allocation: its shadow, and its counters by address."""

    def __init__(self, name):
        self.shadow, self.counters = Shadow(name), {}


class Memories:
    """The Memory of every allocation, by its base object, forgotten when that is freed."""

    def __init__(self):
        self._known = {}

    def __iter__(self):
        return iter([memory for memory, _ in self._known.values()])

    def __call__(self, array, name):
        base = array
        while isinstance(base, (np.ndarray, memoryview)):
            owner = base.base if isinstance(base, np.ndarray) else base.obj
            if owner is None:
                break
            base = owner
        key = id(base)
        found = self._known.get(key)
        if found is None:
            try:
                keep = weakref.ref(base, lambda _: self._known.pop(key, None))
            except TypeError:
                keep = base
            found = self._known[key] = Memory(name), keep
        return found[0]


def access(task, region, kind, name, at, place, generic):
    """Check one access against all others, and remember it.

    Args:
        region: SharedTile or Window.
        kind: "read", "write" or the operation of an atomic reduction.
        name: what the primitive is called.
        at: (component, epoch) in which it happens.
        place: site().
        generic: whether it goes through the generic proxy (else the async one).

    Raises:
        RaceError, and ProtocolError for memory nothing has written or whose writer has not called fence_async.
    """
    session = task.session
    cell = region.cell(session)
    if cell is None:
        return
    session.accesses += 1
    check(cell, task, kind, name, region, place)
    if region.__class__ is SharedTile:
        if kind == "write":
            region.arena.initialise(cell)
        else:
            if not region.arena.initialised(cell):
                raise ProtocolError(f"{task.name} at {where(place)}: {name} reads {region.label}, which nothing has written. Shared memory starts "
                                    f"undefined. Wait for the semaphore of the load first.", **origin(task, place))
            if not generic:
                _check_fence(task, region, cell, name, place)
    record(region.shadow, cell, kind, (*at, task.name, name, place, generic, kind))


def _check_fence(task, region, cell, name, place):
    write = unfenced(cell, task.clock)
    if write is not None:
        raise ProtocolError(
            f"{task.name} at {where(place)}: {name} reads {region.label} through the async proxy, but {write[2]} wrote it at {where(write[4])} "
            f"and has not called fence_async since. Ordinary writes reach the copy engine and the tensor cores only through a proxy fence. "
            f"Call fence_async(tile) after the write, before arriving.", **origin(task, place), writer=write[2])


def fence_async(tile):
    """Make the generic writes of the current role to `tile` visible to the async proxy. PTX: fence.proxy.async."""
    task = current()
    if task.session.races:
        cell = tile.cell(task.session)
        for c in (cell, *[other for other, _ in cell.near]):
            if c.write is not None and c.write[5] and c.write[0] == task.component:
                c.fence = task.epoch


def read(region):
    """A copy of the region's values (outside the array: zero), through the generic proxy."""
    task = current()
    if task.session.races:
        access(task, region, "read", "read", (task.component, task.epoch), site(), generic=True)
    values = region.read()
    task.pause()
    return values


def write(region, values):
    """Write the region, converted to its dtype, through the generic proxy."""
    task = current()
    if np.size(values) not in (prod(region.shape), 1):
        raise error(ContractError, task, f"write: {np.shape(values)} values into {region.name} of shape {region.shape}.")
    if task.session.races:
        access(task, region, "write", "write", (task.component, task.epoch), site(), generic=True)
    if np.size(values) == 1 and prod(region.shape) != 1:
        values = np.broadcast_to(np.reshape(values, ()), region.shape)
    region.put(np.asarray(values).astype(region.dtype, copy=False))
    task.pause()
