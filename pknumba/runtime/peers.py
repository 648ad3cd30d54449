"""What the ranks of an MPI job know of each other's end: who has failed, who has left, whose process has died.

A rank that fails says so in a message to every other rank; one whose process ends without a word is seen by its process
descriptor. Whoever waits for such a rank on the host gets WorldError at once, instead of HangError after its limit; the calls in
``on_death`` end the waits of devices.
"""

import atexit
import os
import select
import sys
import threading
import time
import weakref

from ..errors import WorldError

__all__ = ["Peers", "lost", "follows"]

#: Tag of a rank's last words, above those of the exchanges (``mpi``), and their bytes at most.
_TAG, _BYTES = 32000, 2048
#: Kinds of last words. One that follows from another rank's failure is no news: the others know, or will know, of the first.
_FAILED, _LEFT, _DIED, _FOLLOWS = "failed", "left", "died", "follows"


class Peers:
    """The other ranks of a communicator, as far as they are in trouble.

    Args:
        mpi: mpi4py's MPI. like: a communicator of the same ranks.

    Attributes:
        comm: the communicator of last words, to be set as soon as there is one, until ``close``.
    """

    def __init__(self, mpi, like):
        self.mpi, self.comm, self.rank, self.size = mpi, None, like.rank, like.size
        self.words, self.dead, self.over, self.on_death, self.told, self._sent = {}, set(), set(), [], False, []
        self._watch = self._wake = None
        me = weakref.ref(self)
        self._last = lambda: me() and me().leave()
        if self.size > 1:
            atexit.register(self._last)

    def identity(self):
        """What a rank says of its process: number, and when it started, so that a number which is used again is not taken for it."""
        return os.getpid(), _started(os.getpid())

    def meet(self, identities):
        """Watch the processes of the other ranks, those that this one can see (containers may hide them)."""
        found = {}
        for rank, (pid, started) in enumerate(identities):
            if rank != self.rank and started is not None and _started(pid) == started:
                try:
                    found[os.pidfd_open(pid)] = rank, pid
                except (AttributeError, OSError):       # an old kernel: then only messages tell
                    continue
        if found:
            woken, wake = os.pipe()
            self._wake = weakref.finalize(self, os.close, wake)
            self._watch = threading.Thread(target=_watch, args=(weakref.ref(self), found, woken), daemon=True, name="pknumba peers")
            self._watch.start()

    def tell(self, text, kind=None, follows=False):
        """This rank is in trouble: every other rank is to know. Only the first time counts. `follows`: because another rank is."""
        kind = kind or (_FOLLOWS if follows else _FAILED)
        if self.told or self.comm is None or self.size == 1:
            return
        self.told = True
        data = f"{kind} {text}".encode()[:_BYTES]
        try:
            self._sent = [self.comm.Isend([data, self.mpi.BYTE], r, _TAG) for r in range(self.size) if r != self.rank]
        except self.mpi.Exception:                      # MPI is ending itself
            pass

    def leave(self):
        """The process ends, and the world was not closed: by an exception, or too early."""
        if self.comm is None or self.mpi.Is_finalized():
            return
        failure = getattr(sys, "last_value", None)
        if failure is not None:
            self.tell(f"{type(failure).__name__}: {failure}", follows=follows(failure))
        else:
            self.tell("its program ended, and did not close the world", _LEFT)
        self.close()

    def listen(self):
        """Take in what other ranks have said."""
        status = self.mpi.Status()
        while self._probed(status):
            data = bytearray(status.Get_count(self.mpi.BYTE))
            self.comm.Recv([data, self.mpi.BYTE], status.Get_source(), _TAG)
            kind, _, text = data.decode(errors="replace").partition(" ")
            self.over.add(status.Get_source())
            if kind != _FOLLOWS and self.words.get(status.Get_source(), ("",))[0] != _FAILED:
                self.words[status.Get_source()] = kind, text

    def _probed(self, status):
        """Whether there is a message to take in. None comes any more once MPI has found a process gone: it says so of every request, by
        which those who wait for that process are told."""
        try:
            return self.comm is not None and self.size > 1 and self.comm.Iprobe(self.mpi.ANY_SOURCE, _TAG, status)
        except self.mpi.Exception:
            return False

    def troubled(self):
        """Whether anything has been said; cheap."""
        self.listen()
        return bool(self.words)

    def check(self, missing=(), patient=False):
        """Raise WorldError if a rank has failed or died, or one of the `missing`, for whom this rank waits, has left.

        A rank that is `patient` has a limit of its own: that another has waited too long, perhaps for the same rank, ends nothing yet.
        """
        self.listen()
        for rank, (kind, text) in sorted(self.words.items()):
            if kind == _LEFT and rank not in missing or patient and kind == _FAILED and " has waited " in text:
                continue
            raise lost(f"rank {rank} {'failed' if kind == _FAILED else 'is gone'}", text, rank)

    def await_others(self, seconds):
        """Give the other ranks so long to say that they have failed too, each with an error of its own."""
        until = time.monotonic() + seconds
        while len(self.over | self.dead) < self.size - 1 and time.monotonic() < until:
            self.listen()
            time.sleep(0.01)

    def died(self, rank, pid):
        """The process of a rank has ended (called by the thread that watches)."""
        self.dead.add(rank)
        self.words.setdefault(rank, (_DIED, f"its process {pid} has ended"))
        for call in list(self.on_death):
            call(rank)

    def close(self):
        """Stop watching."""
        atexit.unregister(self._last)
        self.comm = None
        if self._watch is not None:
            self._wake()
            self._watch.join()
            self._watch = None


def lost(what, why, rank):
    """The WorldError of whoever waits for a rank that is gone; ``rank`` None: MPI does not say which."""
    return WorldError(f"World: {what}: {why}. A world whose rank failed is broken. Look at that rank's own error, and start again.",
                      failed_rank=rank)


def follows(error):
    """Whether a rank has this error because another rank has failed."""
    told = getattr(getattr(error, "record", None), "told", None)
    return hasattr(error, "failed_rank") or told not in (None, getattr(getattr(error, "record", None), "rank", None))


def _watch(peers, found, woken):
    """Wait for processes to end, without taking any time; ends when the other end of the pipe `woken` is closed."""
    poll = select.poll()
    for descriptor in (*found, woken):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    try:
        while True:
            for descriptor, _ in poll.poll():
                here = peers()
                if descriptor == woken or here is None:
                    return
                poll.unregister(descriptor)
                here.died(*found[descriptor])
                del here
    finally:
        for descriptor in (*found, woken):
            os.close(descriptor)


def _started(pid):
    """When a process started, in clock ticks; None if there is none of that number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None
