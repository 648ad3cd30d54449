"""What ranks in different processes tell each other about their progress: a page of int64 words in shared memory, and texts."""

import time

import numpy as np

#: States of a rank: its code runs; all its tasks wait; it will never signal again; its host code waits for other ranks.
RUNNING, IDLE, ENDED, OUTSIDE = range(4)
#: Marks of a broken world: this rank raised; this rank found a deadlock.
FAILED, DEADLOCKED = 1, 2
#: Bytes of a rank's report or error text in the control page.
_TEXT = 16384
#: Bytes of what a rank is doing, and of the two times with it: seen last, begun (nanoseconds of the node's monotonic clock).
_DOING, _TIMES = 512, 16
_PAGE = 4096


class ControlPage:
    """The control page, in the memory of rank 0, and each rank's text."""

    def __init__(self, parts, rank, size):
        self.rank, self.size = rank, size
        self._parts = parts
        words = parts[0][:8 * size * (2 * size + 3)].view(np.int64)
        self.seen = words[:size * size].reshape(size, size)
        #: [r, q]: meetings with q that host code of r has come to.
        self.met = words[size * size:2 * size * size].reshape(size, size)
        self.events, self.states, self.broken = words[2 * size * size:].reshape(3, size)
        self._texts = [part[-_TEXT - 8:] for part in parts]
        self._doing = [part[-_TEXT - 8 - _DOING - _TIMES:-_TEXT - 8] for part in parts]

    @staticmethod
    def size(ranks):
        return pages(8 * ranks * (2 * ranks + 3) + _TEXT + 8 + _DOING + _TIMES)

    def stuck(self):
        """Whether no rank can ever move again."""
        before = self.events.tolist()
        states, seen, missing = self.states.tolist(), self.seen.tolist(), [self.missing(r) for r in range(self.size)]
        if before != self.events.tolist():
            return False
        fixed = [state == ENDED or state == IDLE and seen[r] == before for r, state in enumerate(states)]
        return all(fixed[r] or state == OUTSIDE and any(fixed[q] for q in missing[r])
                   for r, state in enumerate(states))

    def missing(self, rank):
        """The ranks that have not come yet to the meeting in which host code of `rank` waits.

        One that has come and gone on is not among them: `rank` will leave as soon as it is its turn to run.
        """
        return [q for q in range(self.size) if self.met[q, rank] < self.met[rank, q]]

    def enter_outside(self, ranks):
        """This rank's host code comes to a meeting of `ranks` and waits for the others."""
        self.met[self.rank, list(ranks)] += 1
        self.states[self.rank] = OUTSIDE

    def leave_outside(self):
        self.events[self.rank] += 1
        self.states[self.rank] = RUNNING

    def end(self):
        """This rank will never signal again."""
        self.states[self.rank] = ENDED

    def mark(self, broken, text):
        """This rank has failed or found a deadlock; `text` says how."""
        self._tell(text)
        self.broken[self.rank] = broken

    def marked(self, broken):
        """Another rank with that mark, or None."""
        return next((r for r, mark in enumerate(self.broken.tolist()) if mark == broken and r != self.rank), None)

    def _tell(self, text):
        data = np.frombuffer(text.encode()[:_TEXT], np.uint8)
        mine = self._texts[self.rank]
        mine[8:8 + len(data)] = data
        mine[:8].view(np.int64)[0] = len(data)

    def told(self, rank):
        return int(self._texts[rank][:8].view(np.int64)[0]) > 0

    def text(self, rank):
        size = int(self._texts[rank][:8].view(np.int64)[0])
        return self._texts[rank][8:8 + size].tobytes().decode(errors="replace")

    def show(self, text, new):
        """This rank is at that now; `new`: it was somewhere else before."""
        mine, now = self._doing[self.rank], time.monotonic_ns()
        times = mine[:_TIMES].view(np.int64)
        times[0] = now
        if new:
            times[1] = now
            mine[_TIMES:] = np.frombuffer(text.encode()[:_DOING].ljust(_DOING), np.uint8)

    def shown(self, rank):
        """(what a rank is at, seconds since it came there, seconds since it was seen)."""
        theirs, now = self._doing[rank], time.monotonic_ns()
        seen, begun = theirs[:_TIMES].view(np.int64).tolist()
        return theirs[_TIMES:].tobytes().decode(errors="replace").strip(" \0"), (now - begun) / 1e9, (now - seen) / 1e9

    def first_waiting(self):
        """The first rank that waits, in a kernel or in host code."""
        states = self.states.tolist()
        return next((r for r, state in enumerate(states) if state in (IDLE, OUTSIDE)), None)

    def first_running(self):
        states = self.states.tolist()
        return states.index(RUNNING) if RUNNING in states else self.rank

    def describe(self, rank):
        if self.states[rank] == OUTSIDE:
            missing = self.missing(rank)
            return f"waits in host code for rank{'s' * (len(missing) != 1)} {', '.join(map(str, missing))}"
        return "has ended" if self.states[rank] == ENDED else "is idle"


def pages(nbytes):
    """`nbytes`, rounded up to whole pages."""
    return -(-max(nbytes, 1) // _PAGE) * _PAGE
