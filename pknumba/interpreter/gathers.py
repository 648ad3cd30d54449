"""Copies by ordinary threads into shared memory: rows from anywhere, which are read and written when the session likes."""

from math import prod

import numpy as np

from ..errors import ContractError
from .access import access
from .clocks import advance
from .operations import Operation
from .report import error, site, where
from .task import current


class Gathers:
    """The copies that a role's own threads have asked for, oldest first, and arrivals that wait for them."""

    def __init__(self, task):
        self.task, self.left, self.told, self.untold, self.count = task, [], [], [], 0

    def add(self, text):
        """Number of a new copy."""
        self.count += 1
        self.left.append(self.count)
        self.untold.append(text)
        return self.count

    def done(self, number):
        """The session has written it."""
        self.left.remove(number)
        self._tell()

    def arrive(self, sem):
        """An arrival on `sem` once all copies so far are written. PTX: cp.async.mbarrier.arrive."""
        task, clock, at = self.task, None, None
        if task.session.races:
            at = task.queues["gathered"] if "gathered" in task.queues else (task.component, task.epoch)
            clock = advance(task.clock.copy(), *at)
        sem.check_arriver(task)
        self.untold.clear()
        self.told.append((self.count, sem, clock, at))
        self._tell()
        if task.session.races:
            task.tick()
        task.pause()

    def _tell(self):
        while self.told and not any(number <= self.told[0][0] for number in self.left):
            _, sem, clock, at = self.told.pop(0)
            sem.gathered(self.task, clock, at)


def gather(kind, sources, target):
    """An asynchronous copy through the generic proxy: later the `sources` are read, then `target` is written, row by row.

    ``current().gathers.arrive`` tells of it. Who reads the target through the async proxy needs ``fence_gathered`` after the wait.

    Args:
        sources: windows of one row each, None for a row of zeros. target: SharedTile with as many rows.

    Raises: as ``transfer``.
    """
    task = current()
    session, gathers, place = task.session, task.gathers, None
    some = [source for source in sources if source is not None]
    if len(sources) != prod(target.shape[:-1]) or any(s.dtype != target.dtype or prod(s.shape) != target.shape[-1] for s in some):
        raise error(ContractError, task, f"{kind}: {len(sources)} rows to {target.name} of shape {target.shape} and {target.dtype}. Rows "
                                         "are copied as they are. Use a tile of the tensor's dtype.")
    session.operations += 1
    task.launch.flying += 1
    if session.races:
        place, at = site(), task.queue("gathered")
        for source in some:
            access(task, source, "read", kind, at, place, generic=True)
        access(task, target, "write", kind, at, place, generic=True)
    if session.time is None or session.time.values:
        target.poison()
    number, values = gathers.add(f"{kind} to {target.name}" + (f" at {where(place)}" if place else "")), []
    moves = session.time is None or session.time.moves(target)

    def read():
        if moves:
            values.extend(np.zeros(target.shape[-1], target.dtype) if s is None else s.read().reshape(-1) for s in sources)

    def written():
        if moves:
            target.put(np.stack(values))
        gathers.done(number)
    operation = Operation(kind, task, (f"{len(some)} rows", target.name), read, written)
    if session.time is not None:
        found = [session.time.copy(task, source, source, None) for source in some] or [(session.time.now,) * 2]
        operation.begun, operation.times = session.time.now, found[-1]
    session.queue.add_operation(operation)
    task.pause()
