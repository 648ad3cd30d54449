"""Values in a warpgroup's registers: float32 arithmetic by element, with row vectors repeated over columns."""

from numbers import Number

import numpy as np

from ..errors import ContractError
from .report import error
from .task import running


class Registers:
    """Base of Accumulator (rows, columns) and Rows (rows, 1). Operators make new values and leave their operands alone."""

    __array_ufunc__ = None      # so that a NumPy number on the left leaves the operation to us

    def __add__(self, other):
        return elementwise(np.add, self, other)

    def __sub__(self, other):
        return elementwise(np.subtract, self, other)

    def __mul__(self, other):
        return elementwise(np.multiply, self, other)

    def __truediv__(self, other):
        return elementwise(np.divide, self, other)

    def __radd__(self, other):
        return elementwise(np.add, other, self)

    def __rsub__(self, other):
        return elementwise(np.subtract, other, self)

    def __rmul__(self, other):
        return elementwise(np.multiply, other, self)

    def __rtruediv__(self, other):
        return elementwise(np.divide, other, self)

    def __neg__(self):
        return elementwise(np.negative, self)


class Rows(Registers):
    """One float32 for each row of an accumulator; ``value`` has the shape (rows, 1)."""

    def __init__(self, values):
        self.value = np.array(values, np.float32).reshape(-1, 1)
        self.shape, self.rows = self.value.shape, len(self.value)


def elementwise(function, *operands):
    """function of the operands' values, element by element, as an Accumulator, or Rows if there is none among them.

    Args:
        operands: accumulators of one shape (no multiplication in flight), row vectors of as many rows, numbers.
    """
    from .accumulator import Accumulator
    tiles = [x for x in operands if isinstance(x, Registers)]
    shapes = {x.shape for x in tiles}
    shape = max(shapes, default=None)
    if not shape or not shapes <= {shape, (shape[0], 1)} or not all(isinstance(x, (Registers, Number)) for x in operands):
        kinds = " and ".join(f"{type(x).__name__} {x.shape}" if hasattr(x, "shape") else type(x).__name__ for x in operands)
        raise error(ContractError, running(), f"{function.__name__}: of {kinds}. It takes accumulators of one shape, row vectors "
                                              "with as many rows, and numbers. Load a shared tile first.")
    task = running()
    if task is not None and task.session.time is not None:
        task.session.time.compute(task, shape[0] * shape[1])
    with np.errstate(all="ignore"):         # what was read too early must come through without a warning
        values = function(*(x.value if isinstance(x, Registers) else np.float32(x) for x in operands))
    return Accumulator.of(values) if any(isinstance(x, Accumulator) for x in tiles) else Rows(values)


def values(acc):
    """The (rows, cols) values of an accumulator. ContractError for anything else, ProtocolError while it is being multiplied into."""
    from .accumulator import Accumulator
    if not isinstance(acc, Accumulator):
        raise error(ContractError, running(), f"registers: a {type(acc).__name__}. An accumulator (a register tile of rows and columns) is "
                                              "needed here. Load a shared tile first.")
    return acc.value
