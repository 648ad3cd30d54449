"""Ranks that are MPI processes of one node: shared arrays and counters, and deadlocks across processes found exactly.

Each process runs its own session; counters and symmetric arrays live in memory that the processes share. Nothing is sent while a kernel
runs: whoever has nothing to do polls. A control page says what each rank has announced (``events``: additions it made, each
counted *after* its write), what each idle rank had seen (``seen``: the events before its last fruitless poll) and in which
state it is. All ranks are stuck if and only if, between two equal readings of ``events``, every rank is idle and has seen all of
them, or has ended, or waits in host code for a rank that is stuck. That never becomes false again, so every rank finds it
without a time-out. Race checking is off: clocks would have to be shared too.
"""

import atexit
import fcntl
import os
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from math import prod

import numpy as np

from ..errors import DeadlockError, HangError, WorldError
from .control_page import DEADLOCKED, FAILED, IDLE, RUNNING, ControlPage, pages
from .counters import Counters
from .heartbeat import Heartbeat, interval
from .segments import share
from .tensor import Window
from .tiles import dtype_of

#: Polls in a row before a rank begins to sleep between them.
_EAGER_POLLS = 2000


class SharedHeap:
    """Memory that all processes of `comm` share, and what they tell each other about their progress.

    Args:
        comm: mpi4py communicator whose ranks are on one node. Collective.
        limit_s: HangError when nothing has happened anywhere for so long; 0: wait for ever. (Deadlocks need no limit;
            this is for ranks whose host code never comes.)

    Attributes:
        peers: what is known of the other processes' ends (``runtime.peers``), if anything.
    """

    peers = None

    def __init__(self, comm, limit_s=600.0):
        self.comm, self.rank, self.size, self.limit_s = comm, comm.rank, comm.size, limit_s
        self.page = ControlPage(share(comm, ControlPage.size(self.size)), self.rank, self.size)
        self._locks = _lock_file(comm)
        self.polls, self._changed, self._last = 0, time.monotonic(), None
        self.heartbeat = Heartbeat(self.page, interval())
        comm.Barrier()
        atexit.register(self._end)

    def array(self, shape, dtype):
        """One zeroed array per rank, in rank order, that every rank can read and write. Collective."""
        dtype = dtype_of(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        return [part[:nbytes].view(dtype).reshape(shape) for part in share(self.comm, pages(nbytes))]

    def counters(self, n):
        """uint32[n, ranks] per rank: a counter has a slot for each rank that adds, since processes have no atomic additions."""
        return self.array((n, self.size), "uint32")

    def part(self, ranks):
        """The heap of a sub-world of these `ranks` of this one. Collective over its members."""
        return _Part(self, list(ranks))

    def check(self):
        """For host code that waits: WorldError if another rank has failed, DeadlockError if one has found a deadlock."""
        self._check_failed()
        self.heartbeat.waiting(lambda: "in host code")
        found = self.page.marked(DEADLOCKED)
        if found is not None:
            raise DeadlockError(f"deadlock: this rank waits in host code.\n{self.page.text(found)}", waiting=[],
                                report=self.page.text(found))

    def _check_failed(self):
        if self.peers is not None and self.peers.dead:
            self.peers.check()
        failed = self.page.marked(FAILED)
        if failed is not None:
            raise WorldError(f"World: rank {failed} failed: {self.page.text(failed)}. A world whose rank failed is broken. "
                             "Make a new one.", failed_rank=failed)

    @contextmanager
    def outside(self, ranks):
        """Context of host code that waits until all `ranks` have come: counts as stuck while one of them is."""
        self.page.enter_outside(ranks)
        try:
            yield
        finally:
            self.page.leave_outside()
            self.heartbeat.rest()

    def _end(self):
        from mpi4py import MPI
        if MPI.Is_finalized():              # the page is gone with MPI
            return
        failure = getattr(sys, "last_value", None)
        if failure is not None:             # what ended this process: no deadlock, but a failure to name
            self.failed(failure)
        self.page.end()

    def close(self):
        """Give back what is not an array; arrays are freed when they are dropped. A second call does nothing."""
        if self._locks is not None:
            atexit.unregister(self._end)
            self.page.end()
            self.heartbeat.close()
            os.close(self._locks)
            self._locks = None

    # ---- the session's side
    def published(self):
        """This rank has added to a counter."""
        self.page.events[self.rank] += 1

    def lock(self, region):
        """Context in which no other process combines into the memory of the region's rank."""
        return _locked(self._locks, region.view.owner) if isinstance(region, Window) else nullcontext()

    def idle(self, session):
        """Nothing of this process can move: poll. False once nothing waits; raises what is wrong elsewhere."""
        page = self.page
        if not session.blocked:
            self._run()
            return False
        snapshot = page.events.tolist()
        ready = [t for t in session.blocked if isinstance(t.waiting, Counters) and t.waiting.ready(t)]
        if ready:
            self._run()
            for task in ready:
                task.waiting.forget(task)
                session.wake(task)
            return True
        page.seen[self.rank, :] = snapshot
        page.states[self.rank] = IDLE
        stuck = page.stuck()
        self._check_failed()        # after it: a rank that failed may have ended since, and that is no deadlock
        if stuck:
            raise self._deadlock(session)
        self._nap(snapshot)
        if self.polls >= _EAGER_POLLS:
            self.heartbeat.waiting(lambda: "for " + _first(session.blocked))
        return True

    def _run(self):
        """Something of this process can move."""
        self.page.states[self.rank], self.polls, self._last = RUNNING, 0, None
        self.heartbeat.rest()

    def failed(self, failure):
        """A run of this rank ended with `failure`: the other ranks must know."""
        if not isinstance(failure, DeadlockError) and not (isinstance(failure, WorldError) and hasattr(failure, "failed_rank")):
            self.page.mark(FAILED, f"{type(failure).__name__}: {failure}")

    def _nap(self, snapshot):
        self.polls += 1
        if snapshot != self._last:
            self._last, self._changed = snapshot, time.monotonic()
        if self.polls < _EAGER_POLLS:
            os.sched_yield()
            return
        time.sleep(1e-4)
        if self.limit_s and time.monotonic() - self._changed > self.limit_s:
            raise HangError(f"World: no rank has signalled for {self.limit_s:g} s, and rank {self.page.first_running()} is in its "
                            f"host code. All ranks of a world make its calls. Look at what that rank does.{self.heartbeat.others()}",
                            rank=self.page.first_running())

    def _deadlock(self, session):
        """The DeadlockError of all ranks: each has found the same, so each waits shortly for the others' reports."""
        own = session.deadlock()
        page = self.page
        page.mark(DEADLOCKED, own.report)
        until = time.monotonic() + 5
        while time.monotonic() < until and any(not page.told(r) for r in range(self.size) if page.states[r] == IDLE):
            os.sched_yield()
        lines = [f"deadlock across {self.size} ranks: each waits or has ended, and nothing is in flight on any of them."]
        lines += [f"rank {r} {page.describe(r)}." for r in range(self.size) if not page.told(r)]
        lines += [f"rank {r}: {page.text(r)}" for r in range(self.size) if page.told(r)]
        text = "\n".join(lines)
        return DeadlockError(text, waiting=own.waiting, report=text)


class _Part:
    """The heap of a sub-world: arrays of its own, the control page of the whole."""

    def __init__(self, whole, ranks):
        group = whole.comm.group.Incl(ranks)
        self.whole, self.ranks = whole, ranks
        self.comm = whole.comm.Create_group(group)
        self.rank, self.size = self.comm.rank, self.comm.size

    array, counters = SharedHeap.array, SharedHeap.counters

    def part(self, ranks):
        return _Part(self.whole, [self.ranks[r] for r in ranks])

    def check(self):
        self.whole.check()

    def outside(self, ranks):
        return self.whole.outside([self.ranks[r] for r in ranks])


def _first(blocked):
    """What the first of the tasks that wait is waiting for, and how many more do."""
    task = next(iter(blocked))
    more = f" ({len(blocked)} tasks wait)" if len(blocked) > 1 else ""
    return f"{task.waiting.describe(task)}{more}"


def _lock_file(comm):
    """Descriptor of a file, already unlinked, whose byte r guards combining into rank r's memory. Collective."""
    path = None
    if comm.rank == 0:
        descriptor, path = tempfile.mkstemp(prefix="pknumba-lock-")
    path = comm.bcast(path)
    if comm.rank:
        descriptor = os.open(path, os.O_RDWR)
    comm.Barrier()
    if comm.rank == 0:
        os.unlink(path)
    return descriptor


@contextmanager
def _locked(descriptor, byte):
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, byte)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)
