"""Shadow memory: for every region that was ever accessed, the last write and the reads and reductions since (FastTrack).

A region is a rectangle of bytes: rows of a fixed pitch in global memory, one row in a block's shared memory. The regions
that overlap are found once, when a region is new; an access then looks at its own cell and at those near it.
"""

import numpy as np

from ..errors import RaceError
from .clocks import covers
from .report import origin, where

#: Pitch of memory that has no rows.
LINE = 1 << 48


class Cell:
    """What is known about one region.

    Attributes:
        key: (pitch, phase, row, end row, column, end column) in bytes; address = phase + row * pitch + column.
        write: the last write, or None: (component, epoch, task's name, kind, site, generic, serial).
        reads, sums: since then, by component. A sum is an atomic reduction: two of the same kind need no order.
        fence: epoch in which the writer made its generic write visible to the async proxy; None if it has not.
        near: (overlapping cell, whether it lies inside this one).
    """

    __slots__ = ("key", "write", "reads", "sums", "fence", "near", "initialised")

    def __init__(self, key):
        self.key, self.write, self.reads, self.sums = key, None, {}, {}
        self.fence, self.near, self.initialised = None, [], False


class Shadow:
    """The cells of one memory: a block's shared memory, or one array of one rank."""

    def __init__(self, name):
        self.name, self.cells, self.grids, self.serial = name, {}, {}, 0

    def cell(self, key):
        found = self.cells.get(key)
        if found is None:
            found = Cell(key)
            for other in self._overlapping(key):
                found.near.append((other, _contains(key, other.key)))
                other.near.append((found, _contains(other.key, key)))
            self.cells[key] = found
            self.grids.setdefault(key[:2], _Grid()).add(found)
        return found

    def _overlapping(self, key):
        for name, grid in self.grids.items():
            if name == key[:2]:
                yield from grid.overlapping(key)
            else:
                yield from (c for c in grid.cells if _overlap(c.key, key))

    def clear(self):
        """Forget everything: the launches before are ordered before all that follows, or lost."""
        for cell in self.cells.values():
            cell.near = []              # they refer to each other
        self.cells, self.grids = {}, {}


#: Cells up to which comparing them one by one is faster than all at once.
_FEW = 24


class _Grid:
    """Cells of one pitch, with their bounds in an array so that overlaps among many are found at once."""

    def __init__(self):
        self.cells, self.bounds = [], np.empty((4, 2 * _FEW), np.int64)

    def add(self, cell):
        n = len(self.cells)
        if n == self.bounds.shape[1]:
            self.bounds = np.concatenate([self.bounds, np.empty_like(self.bounds)], axis=1)
        self.bounds[:, n] = cell.key[2:]
        self.cells.append(cell)

    def overlapping(self, key):
        _, _, row, row_end, column, column_end = key
        n = len(self.cells)
        if n <= _FEW:
            return [c for c in self.cells if c.key[2] < row_end and c.key[3] > row and c.key[4] < column_end and c.key[5] > column]
        first, end, left, right = self.bounds[:, :n]
        hit = (first < row_end) & (end > row) & (left < column_end) & (right > column)
        return [self.cells[i] for i in hit.nonzero()[0].tolist()]


def _rows(key):
    """(first byte, number of rows, bytes of a row, pitch)."""
    pitch, phase, row, row_end, column, column_end = key
    return phase + row * pitch + column, row_end - row, column_end - column, pitch


def _overlap(a, b):
    """Whether two regions of different pitch share a byte."""
    start_a, rows_a, width_a, pitch_a = _rows(a)
    start_b, rows_b, width_b, pitch_b = _rows(b)
    if start_a + (rows_a - 1) * pitch_a + width_a <= start_b or start_b + (rows_b - 1) * pitch_b + width_b <= start_a:
        return False
    for i in range(rows_a):
        low = start_a + i * pitch_a
        first = max((low - start_b - width_b) // pitch_b + 1, 0)        # the first row of b that ends after low
        if first < rows_b and start_b + first * pitch_b < low + width_a:
            return True
    return False


def _contains(outer, inner):
    """Whether the region `inner` lies inside `outer`; not found for different pitches, which is safe."""
    return (outer[:2] == inner[:2] and outer[2] <= inner[2] and outer[3] >= inner[3] and outer[4] <= inner[4]
            and outer[5] >= inner[5])


def check(cell, task, kind, name, region, place):
    """RaceError unless all that conflicts with this access is ordered before `task`.

    Args:
        kind: "read", "write", or the operation of an atomic reduction.
        name: what the primitive is called.
    """
    clock = task.clock
    for c in (cell, *[other for other, _ in cell.near]) if cell.near else (cell,):
        write = c.write
        if write is not None and not covers(clock, write[0], write[1]):
            raise _race(task, kind, name, region, place, "write", write)
        if kind != "read":
            for component, access in c.reads.items():
                if not covers(clock, component, access[1]):
                    raise _race(task, kind, name, region, place, "read", access)
        for component, access in c.sums.items():
            if access[6] != kind and not covers(clock, component, access[1]):
                raise _race(task, kind, name, region, place, "reduction", access)


def record(shadow, cell, kind, access):
    """Remember an access that passed check()."""
    if kind == "read":
        cell.reads[access[0]] = access
    elif kind == "write":
        shadow.serial += 1
        cell.write, cell.fence = access[:6] + (shadow.serial,), None
        if cell.reads or cell.sums:
            cell.reads, cell.sums = {}, {}
        for other, inside in cell.near:
            if inside and (other.write is not None or other.reads or other.sums):
                # whoever conflicts with the older accesses there conflicts with this write too
                other.write, other.reads, other.sums = None, {}, {}
    else:
        cell.sums[access[0]] = access


def unfenced(cell, clock):
    """The generic write in this region of shared memory that the async proxy may not see yet, or None.

    A write counts only where no later write lies over it.
    """
    cells = [c for c in (cell, *[other for other, _ in cell.near]) if c.write is not None]
    for c in cells:
        write = c.write
        if not write[5] or (c.fence is not None and covers(clock, write[0], c.fence)):
            continue
        start, end = max(c.key[4], cell.key[4]), min(c.key[5], cell.key[5])
        if not any(o.write[6] > write[6] and o.key[4] <= start and o.key[5] >= end for o in cells):
            return write
    return None


def _remedy(task, kind, other):
    """What would order the other access before `task`."""
    who, name = other[2], other[3]
    mine = who == task.name
    if other[5]:
        done = "afterwards, and wait for that here"
        return f"Let {who} arrive on a semaphore or add to a counter {done}."
    if name == "mma":
        done, after = "mma_wait", "arrive on a semaphore"
    elif name.startswith(("load", "send")):
        return "Wait for the phase of the semaphore that the load completes."
    else:
        done, after = ("store_async_read_wait" if kind == "read" else "store_async_wait"), "arrive or signal"
    return f"Call {done} first." if mine else f"Let {who} call {done}, then {after}, and wait for that here."


def _race(task, kind, name, region, place, other_kind, other):
    text = {"read": "read", "write": "write"}.get(kind, "reduction")
    return RaceError(
        f"{task.name} at {where(place)}: {text} of {region.label} by {name} is not ordered after the {other_kind} by {other[3]} "
        f"of {other[2]} at {where(other[4])}. Two accesses to the same memory need an order unless both only read. "
        f"{_remedy(task, other_kind, other)}",
        **origin(task, place), region=region.label,
        other=dict(task=other[2], kind=other_kind, primitive=other[3], site=where(other[4])))
