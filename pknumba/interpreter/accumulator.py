"""The float32 accumulator of a matrix multiplication, whose operands are read asynchronously."""

import numpy as np

from ..errors import ContractError, ProtocolError
from .access import access
from .clocks import advance
from .operations import Operation
from .registers import Registers
from .report import error, site
from .task import current, running

#: Rows of one wgmma.
_BLOCK = 64


class Accumulator(Registers):
    """rows x cols float32 values in registers, undefined (NaN) at first.

    Multiplications of one worker finish in order, whatever accumulator they go to; each reads its operands at some time
    between its issue and the wait that covers it.
    """

    def __init__(self, rows, cols):
        self.shape = self.rows, self.cols = int(rows), int(cols)
        self._values, self._flying = np.broadcast_to(np.float32("nan"), self.shape), 0

    @classmethod
    def of(cls, values):
        """An accumulator of these (rows, cols) values."""
        if values.ndim != 2:
            raise error(ContractError, running(), f"registers: values of shape {values.shape}. A register tile has rows and columns. Index "
                                                  "the tile first.")
        made = cls(*values.shape)
        made.value = values
        return made

    def multiply(self, a, b, add, b_transposed=False, rows=None):
        """value = a @ b (b.T if `b_transposed`), plus value if `add`; asynchronous. Returns self. PTX: wgmma.mma_async.

        Args:
            a: (rows, k) shared tile, or array of register values.
            b: (k, cols) shared tile; (cols, k) if `b_transposed`.
            rows: that matter; blocks of 64 beyond them become undefined. None: all.
        """
        task = current()
        self._check_fit(a, b, b_transposed, task)
        session = task.session
        session.operations += 1
        if session.races:
            place, at = site(), task.queue("mma")
            for operand in (a, b):
                if not isinstance(operand, np.ndarray):
                    access(task, operand, "read", "mma", at, place, generic=False)
        made = self.rows if rows is None else min(self.rows, max(1, -(-int(rows) // _BLOCK)) * _BLOCK)
        product = _Product(self, a, b, bool(add), b_transposed, task, made)
        task.multiplications.append(product)
        task.met = None
        task.multiplied += 1
        self._flying += 1
        task.launch.flying += 1
        if session.time is not None:
            done = session.time.multiply(task, made, self.cols, a.shape[1])
            product.operation.begun, product.operation.times = session.time.now, (done,)
        session.queue.add_operation(product.operation)
        task.pause()
        return self

    def wait(self, pending=0):
        """Finish all but the last `pending` multiplications of this worker. Returns self. PTX: wgmma.wait_group."""
        task = current()
        begun = task.session.now
        task.pause()
        queue = task.multiplications
        if task.session.time is not None and len(queue) > int(pending):
            task.until = max(task.until, queue[-1 - int(pending)].operation.times[0])
            task.pause()
        while len(queue) > int(pending):
            queue.pop(0).finish()
        if task.session.races and "mma" in task.queues:
            component, last = task.queues["mma"]
            task.clock = advance(task.clock, component, last - min(int(pending), task.multiplied))
        task.met = self
        if begun is not None:
            task.session.note(task, "wait", "its multiplications are done" + (f" but for {pending}" if pending else ""), begun)
        return self

    @property
    def value(self):
        """The (rows, cols) float32 values; assign to change them. ProtocolError while a multiplication is in flight."""
        self._check_idle()
        return self._values

    @value.setter
    def value(self, values):
        self._check_idle()
        self._values = np.array(np.broadcast_to(values, self.shape), np.float32)

    def columns(self, first, count):
        """A copy of columns [first, first + count), float32. ProtocolError while a multiplication is in flight."""
        return self.value[:, int(first):int(first) + int(count)].copy()

    def _check_idle(self):
        if self._flying:
            raise error(ProtocolError, current(), f"accumulator touched before mma_wait: {self._flying} multiplications into it "
                                                  "are in flight. Its registers belong to the tensor cores until then. Call "
                                                  "mma_wait(acc, 0) first.")

    def _check_fit(self, a, b, b_transposed, task):
        if not (hasattr(a, "dtype") and hasattr(b, "array") and a.dtype == b.dtype):
            raise error(ContractError, task, f"mma: a {getattr(a, 'dtype', type(a).__name__)} times b "
                                             f"{getattr(b, 'dtype', type(b).__name__)}. Both must be values of one dtype, b a "
                                             "shared tile. Convert registers with as_operand(acc, dtype).")
        inner, cols = (b.shape[1], b.shape[0]) if b_transposed else b.shape
        if tuple(a.shape) != (self.rows, inner) or cols != self.cols:
            raise error(ContractError, task, f"mma: a {tuple(a.shape)} times b "
                                             f"{tuple(b.shape)}{' transposed' if b_transposed else ''} into {self.shape}. The "
                                             "shapes must fit.")


def _operand(x):
    """What the tensor cores take of an array in shared memory: of float32 the 10 highest bits of the mantissa."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if x.dtype == np.float32 else x


class _Product:
    """One multiplication in flight."""

    def __init__(self, accumulator, a, b, add, transposed, task, rows):
        self.accumulator, self.add, self.transposed, self.task, self.rows = accumulator, add, transposed, task, rows
        self.a, self.b, self.shared = *(x.copy() if isinstance(x, np.ndarray) else x.array for x in (a, b)), hasattr(a, "array")
        self.finished = self.waited = False
        self.operation = Operation("mma", task, tuple("registers" if isinstance(x, np.ndarray) else x.name for x in (a, b)), self.step)

    def step(self):
        """The session's turn: this one and those before it."""
        if self.finished:
            return
        for product in self.task.multiplications:
            product.finish(waited=False)
            if product is self:
                break

    def finish(self, waited=True):
        accumulator = self.accumulator
        if not self.finished:
            self.finished = True
            time = self.task.session.time
            accumulator._values = self._value() if time is None or time.values else np.broadcast_to(np.float32(0), accumulator.shape)
        if waited and not self.waited:
            self.waited = True
            accumulator._flying -= 1

    def _value(self):
        # NaN of memory that was read too early must come through without a warning
        with np.errstate(all="ignore"):
            a, b = (_operand(self.a) if self.shared else self.a), _operand(self.b)
            product = np.matmul(a, b.T if self.transposed else b, dtype=np.float32)
            if self.add:
                product += self.accumulator._values
            product[self.rows:] = np.nan
        return product
