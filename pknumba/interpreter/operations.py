"""Asynchronous operations: bulk copies whose read and write the session performs when it likes."""

from math import prod

import numpy as np

from ..errors import ContractError, ProtocolError
from .access import access
from .clocks import advance
from .report import error, site, where
from .task import current
from .tiles import SharedTile

_COMBINE = {"add": np.add, "min": np.minimum, "max": np.maximum}


class Operation:
    """Steps that run one by one, each at a time the session chooses."""

    __slots__ = ("name", "task", "launch", "steps", "position", "priority", "number", "what", "times", "begun")

    def __init__(self, name, task, what, *steps):
        self.name, self.task, self.launch, self.what = name, task, task.launch, what
        self.steps, self.position, self.priority = steps, 0, None
        task.issued += 1
        self.number = task.issued
        self.times = self.begun = None          # in virtual time: when its steps are taken, and when it was issued

    @property
    def label(self):
        """Its name in a schedule: the same in every run in which its role takes the same way."""
        return f"{self.name} {self.number} of {self.task.name}"

    def step_text(self):
        """What its next step does, for a timeline."""
        source, target = self.what
        if self.name == "mma":
            return f"multiplies {source} and {target}"
        return f"reads {source}" if not self.position else f"writes {target}"


class _Store:
    """A bulk group of one copy."""

    __slots__ = ("number", "read", "written", "text")

    def __init__(self, number, text):
        self.number, self.read, self.written, self.text = number, False, False, text


class BulkStores:
    """The bulk groups of one role, oldest first."""

    def __init__(self, task):
        self.task, self.groups, self.count = task, [], 0
        self.safe = 0               # groups whose source read has been waited for

    def add(self, text):
        self.count += 1
        group = _Store(self.count, text)
        self.groups.append(group)
        return group

    def unread(self):
        """The groups whose source read nobody has waited for."""
        return [g for g in self.groups if g.number > self.safe]

    def done(self, group, what):
        """The session has performed a step of `group`."""
        setattr(group, what, True)
        if self.task.waiting is self:
            self.task.session.wake(self.task)

    def wait(self, pending, what):
        """Until all but the last `pending` groups are "read" (source) or "written". PTX: cp.async.bulk.wait_group(.read)."""
        if what not in ("read", "written"):
            raise ContractError(f"stores.wait: what = {what!r}. It must be 'read' or 'written'.")
        task = self.task
        begun = task.session.now
        task.pause()
        last = self.count - int(pending)
        while any(not getattr(g, what) for g in self.groups if g.number <= last):
            task.park(self, (last, what))
        for queue in ("read", "written")[:1 if what == "read" else 2]:
            if task.session.races and queue in task.queues and last > 0:
                component, latest = task.queues[queue]
                task.clock = advance(task.clock, component, latest - self.count + last)
        self.safe = max(self.safe, last)
        self.groups = [g for g in self.groups if g.number > self.safe or not g.written]
        if begun is not None:
            task.session.note(task, "wait", f"its bulk stores are {what}" + (f" but for {pending}" if pending else ""), begun)

    def describe(self, task):
        last, what = task.wanted
        left = [g for g in self.groups if g.number <= last and not getattr(g, what)]
        return f"{len(left)} bulk copies to be {what} ({', '.join(g.text for g in left[:4])})"


def transfer(kind, source, target, completes=None, combine=None):
    """An asynchronous bulk copy through the async proxy: at two later times `source` is read, then `target` written.

    Args:
        kind: what the primitive is called, for reports.
        source, target: regions (SharedTile or Window) of the same dtype and number of elements.
        completes: semaphore that gets complete_tx of the target's full nbytes after the write. Without one, the copy is
            a bulk group of its own in ``current().stores``.
        combine: None to overwrite, or "add" | "min" | "max": target = round(f32(target) op f32(source)), atomically.

    Raises:
        ContractError: regions that do not fit together.
        ProtocolError: the source tile was written by a role that has not made the write visible with fence_async.
        RaceError: an access to either region is not ordered before this copy.
    """
    task = current()
    session = task.session
    _check_fit(kind, source, target, combine, task)
    if task.plain is not None:
        raise error(ProtocolError, task, f"{kind}: follows the wait at {where(task.plain)}, which says that no copies follow. The copy "
                                         "engine need not see what that wait was for. Leave out copies=False there.")
    session.operations += 1
    task.launch.flying += 1
    if completes is not None:
        steps = _load(task, kind, source, target, completes, combine)
    else:
        steps = _store(task, kind, source, target, combine)
    operation = Operation(kind, task, (source.name, target.name), *steps)
    if session.time is not None:
        operation.begun, operation.times = session.time.now, session.time.copy(task, source, target, combine)
    session.queue.add_operation(operation)
    task.pause()


def _check_fit(kind, source, target, combine, task):
    if source.dtype != target.dtype:
        raise error(ContractError, task, f"{kind}: {source.name} is {source.dtype}, {target.name} is {target.dtype}. A bulk copy "
                                         "converts nothing. Use tiles of the tensor's dtype.")
    if prod(source.shape) != prod(target.shape):
        raise error(ContractError, task, f"{kind}: {source.name} has shape {source.shape}, {target.name} {target.shape}. A bulk "
                                         "copy moves one tile onto one of the same size.")
    if combine is not None and combine not in _COMBINE:
        raise error(ContractError, task, f"{kind}: combine = {combine!r}. It must be one of {', '.join(_COMBINE)}.")


def _mover(source, target, combine, session):
    """(read, write) that move the values."""
    values, lock = [], session.lock
    if session.time is not None and not session.time.moves(target):
        return _nothing, _nothing

    def read():
        values.append(source.read())

    def write():
        new = values.pop().reshape(target.shape)
        if combine is None:
            return target.put(new)
        with lock(target):
            old = target.read().astype(np.float32)
            with np.errstate(all="ignore"):
                new = _COMBINE[combine](old, new.astype(np.float32)).astype(target.dtype)
            target.put(new)
    return read, write


def _nothing():
    pass


def _load(task, kind, source, target, completes, combine):
    session, clock, slot = task.session, None, None
    if session.races:
        place, slot = site(), task.slot()
        task.sites[slot[0]] = place
        access(task, source, "read", kind, slot, place, generic=False)
        access(task, target, combine or "write", kind, slot, place, generic=False)
        clock = advance(task.clock.copy(), *slot)
        task.tick()
    if isinstance(target, SharedTile) and combine is None and (session.time is None or session.time.values):
        target.poison()
    read, write = _mover(source, target, combine, session)
    nbytes = prod(target.shape) * target.dtype.itemsize

    def finish():
        write()
        completes.complete(nbytes, clock, slot, kind)
    return read, finish


def _store(task, kind, source, target, combine):
    session, stores = task.session, task.stores
    if session.races:
        place = site()
        access(task, source, "read", kind, task.queue("read"), place, generic=False)
        access(task, target, combine or "write", kind, task.queue("written"), place, generic=False)
    read, write = _mover(source, target, combine, session)
    group = stores.add(f"{kind} of {source.name} to {target.name}" + (f" at {where(place)}" if session.races else ""))

    def first():
        read()
        stores.done(group, "read")

    def second():
        write()
        stores.done(group, "written")
    return first, second


def check_drained(task):
    """ProtocolError if the role ends while the engine may still read shared memory for it."""
    left = task.stores.unread()
    if left:
        raise ProtocolError(f"{task.name}: ended with {len(left)} bulk stores ({left[0].text}) whose source reads it never "
                            "waited for. Shared memory is gone when the block ends. Call store_async_read_wait(0) or "
                            "store_async_wait() last.",
                            rank=task.rank, block=int(task.block), role=task.role.name, task=task.name)
