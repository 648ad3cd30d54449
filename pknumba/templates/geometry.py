"""How what ranks have for each other lies in memory: boxes, their rows, and how far apart those are in each array."""

from collections import namedtuple
from math import prod

from ..errors import LayoutError, ShapeError
from ..primitives.units import UNIT
from ..tiles import ITEMSIZE

#: What an operator moves. ``out``: shape of the result; ``dims``: of a box, what one rank has for another; ``x_slot``, ``y_slot``:
#: (axis, extent) by which the boxes for or from each rank follow each other in the input and in the result, None where there
#: is one; ``slots``: boxes of the input.
Form = namedtuple("Form", "out dims x_slot y_slot slots", defaults=(None, None, 1))

#: An array as a kernel sees it. ``pointer``: device address, or None; ``arrays``: NumPy arrays by rank (interpreter); ``peers``:
#: device address of the table of every rank's address, or 0; ``strides``, ``step``: bytes between rows and between slots.
View = namedtuple("View", "pointer arrays peers strides step", defaults=(None, None, 0, (0, 0, 0), 0))


def contiguous(shape, itemsize):
    """Strides in bytes of a row-major array."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_contiguous(shape, strides, itemsize):
    """Whether an array is row-major without gaps; extents of 1 have no stride that matters."""
    return 0 in shape or all(n == 1 or s == c for n, s, c in zip(shape, strides, contiguous(shape, itemsize)))


class Box:
    """A box of a form, for arrays of these strides.

    Attributes:
        numbers: (n1, n2, units of a row, elements of a row's last unit, units in all), as kernels want it.
        x, y: (strides of the rows, step of slots) in bytes, of input and result; packed: the same for memory where slots follow
            each other and rows begin on a unit, unless they are very short; packed_bytes: how much of it there is.
    """

    def __init__(self, name, form, dtype, x_strides, y_strides):
        size = ITEMSIZE[dtype]
        rows, run = _fold(name, form.dims, x_strides, y_strides, size)
        extents = [n for n, *_ in rows]
        units = -(-run * size // UNIT)
        total = prod(extents) * units
        if total >= 2**31:
            raise ShapeError(f"{name}: {total} units of 16 bytes for each rank. A call moves fewer than 2^31. Split the array.")
        self.numbers = extents[1], extents[2], units, run - (units - 1) * (UNIT // size), total
        self.elements, self.single = prod(form.dims), prod(extents) == 1
        self.x = tuple(x for _, x, _ in rows), _step(form.x_slot, x_strides)
        self.y = tuple(y for *_, y in rows), _step(form.y_slot, y_strides)
        width = units * UNIT if run * size > 4 * UNIT else run * size
        strides = extents[1] * extents[2] * width, extents[2] * width, width
        step = -(-extents[0] * strides[0] // UNIT) * UNIT
        self.packed, self.packed_bytes = (strides, step), form.slots * step


class Ragged:
    """Boxes of different sizes: what rank p has for rank r is ``scatter[r]`` long in one dimension and ``gather[p]`` in another.

    Args:
        shape: of the input of rank ``rank``; out: of its result; both are contiguous. axes: (scattered, gathered) dimension; equal:
            what rank p has for r is ``scatter[r]`` long in it.

    Attributes: as of Box, ``numbers`` of the largest box; and ``table``: for every rank r six integers, the numbers of the box for
    r and where it begins in the input; then for every p those of the box from p and where it begins in the result.
    """

    single = False

    def __init__(self, name, shape, out, axes, scatter, gather, rank, dtype):
        self.size, (s, t) = ITEMSIZE[dtype], axes
        self.first, self.last, self.shape, self.same = min(axes), max(axes), shape, s == t
        self.x, self.y = ((self._rows(whole), contiguous(whole, self.size)[axis]) for whole, axis in ((shape, s), (out, t)))

        def box(p, r):
            return self._box({s: scatter[r]} if self.same else {s: scatter[r], t: gather[p]})
        everyone = range(len(scatter))
        self.table = [n for r in everyone for n in (*box(rank, r), sum(scatter[:r]))]
        self.table += [n for p in everyone for n in (*box(p, rank), p * scatter[rank] if self.same else sum(gather[:p]))]
        self.numbers = self._box({s: max(scatter)} if self.same else {s: max(scatter), t: max(gather)})
        if self.numbers[-1] >= 2**31:
            raise ShapeError(f"{name}: {self.numbers[-1]} units of 16 bytes for a rank. A call moves fewer than 2^31. Split the array.")
        self.elements, width = 0, self.numbers[2] * UNIT
        strides = self.numbers[0] * self.numbers[1] * width, self.numbers[1] * width, width
        step = prod(shape[:self.first]) * strides[0]
        self.packed, self.packed_bytes = (strides, step), len(scatter) * step

    def _rows(self, shape):
        """Strides of the rows: dimensions before, the first of the two, those between. A row is the second and all after it."""
        strides, a, b = contiguous(shape, self.size), self.first, self.last
        before = shape[a] * strides[a]
        return (before, 0, 0) if self.same else (before, strides[a], shape[b] * strides[b])

    def _box(self, extents):
        a, b = self.first, self.last
        n1, n2 = (1, 1) if self.same else (extents[a], prod(self.shape[a + 1:b]))
        run = extents[b] * prod(self.shape[b + 1:])
        units = -(-run * self.size // UNIT)
        total = prod(self.shape[:a]) * n1 * n2 * units
        return max(n1, 1), max(n2, 1), max(units, 1), run - (units - 1) * (UNIT // self.size), total


class Rows:
    """The rows of an array, its last dimension, each a slot of its own: for kernels that need whole rows.

    Attributes: as of Box; and ``rows``: how many there are; ``strides``: of a contiguous array.
    """

    single = False

    def __init__(self, shape, dtype):
        size, length = ITEMSIZE[dtype], shape[-1]
        units = -(-length * size // UNIT)
        self.shape, self.rows, self.elements, self.strides = shape, prod(shape[:-1]), length, contiguous(shape, size)
        self.numbers = 1, 1, units, length - (units - 1) * (UNIT // size), units
        self.packed, self.packed_bytes = ((0, 0, 0), units * UNIT), self.rows * units * UNIT

    def layout(self, strides):
        """(strides, step) of an array of this shape with these strides."""
        many = [i for i, n in enumerate(self.shape[:-1]) if n > 1]
        return (0, 0, 0), strides[many[-1]] // prod(self.shape[many[-1] + 1:-1]) if many else 0


def _step(slot, strides):
    return slot[1] * strides[slot[0]] if slot else 0


def _fold(name, dims, x_strides, y_strides, size):
    """(three rows dimensions (extent, stride in x, stride in y), elements of a row): neighbours in both arrays are one dimension."""
    folded = []
    for n, x, y in zip(dims, x_strides, y_strides):
        if n == 1:
            continue
        if folded and folded[-1][1:] == (n * x, n * y):
            folded[-1] = folded[-1][0] * n, x, y
        else:
            folded.append((n, x, y))
    run = folded.pop()[0] if folded and folded[-1][1:] == (size, size) else 1
    if len(folded) > 3:
        raise LayoutError(f"{name}: boxes {tuple(dims)} lie in {len(folded)} dimensions of separate rows. A kernel knows 3. Pass arrays of "
                          "fewer dimensions.")
    return [(1, 0, 0)] * (3 - len(folded)) + folded, run


def alignment(view):
    """The largest power of two, up to a unit, that every row of every slot starts on (device)."""
    bits = view.pointer | view.step | UNIT
    for s in view.strides:
        bits |= s
    return bits & -bits
