"""What the processes of a world are doing, said aloud by one that has waited for long: which rank, which role, which line."""

import os
import sys
import threading
import time

from . import report
from .control_page import IDLE, OUTSIDE, RUNNING
from .task import Task

__all__ = ["Heartbeat", "interval"]


def interval():
    """Seconds after which a rank that waits says for whom: PKNUMBA_HEARTBEAT_S, or 10; 0: never."""
    try:
        return max(0.0, float(os.environ.get("PKNUMBA_HEARTBEAT_S", "10")))
    except ValueError:
        return 10.0


class Heartbeat:
    """Looks at this process's main thread now and then, and shows the other ranks what it sees.

    Args:
        page: the ControlPage. seconds: after which a wait is told; the thread looks four times as often.
    """

    def __init__(self, page, seconds):
        self.page, self.seconds, self.waits = page, seconds, None
        self._said, self._stop, self._target = None, threading.Event(), threading.get_ident()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="pknumba heartbeat") if seconds else None
        if self._thread:
            page.show("starts", True)
            self._thread.start()

    def close(self):
        """Stop looking."""
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _watch(self):
        last = None
        while not self._stop.wait(min(1.0, self.seconds / 4)):
            frame = sys._current_frames().get(self._target)
            if frame is not None:
                seen = _doing(frame)
                self.page.show(seen, seen != last)
                last = seen
            del frame

    # ---- the side of who waits
    def rest(self):
        """This rank does not wait any more."""
        self.waits = None

    def waiting(self, why):
        """This rank waits; `why` is a function that says for what. Prints when it is time, if no rank before this one does."""
        now = time.monotonic()
        if self.waits is None:
            self.waits = self._said = now
        if self.seconds and now - self._said > self.seconds:
            self._said = now
            if self.page.first_waiting() == self.page.rank:
                print(f"pknumba: rank {self.page.rank} has waited {now - self.waits:.0f} s {why()}.{self.others()}", file=sys.stderr,
                      flush=True)

    def others(self):
        """Sentences about the other ranks: those at work first."""
        page, lines = self.page, []
        states = page.states.tolist()
        for rank in sorted(range(page.size), key=lambda r: states[r] != RUNNING):
            if rank == page.rank:
                continue
            if states[rank] == RUNNING:
                text, since, beat = page.shown(rank)
                silent = f", and has shown no sign of life for {beat:.0f} s" if beat > max(2 * self.seconds, 3) else ""
                lines.append(f"rank {rank} works: {text} for {since:.0f} s{silent}")
            elif states[rank] in (IDLE, OUTSIDE):
                lines.append(f"rank {rank} {'waits' if states[rank] == IDLE else page.describe(rank)}")
            else:
                lines.append(f"rank {rank} has ended")
        return "".join(f"\n  {line}" for line in lines)


def _doing(frame):
    """The role, or host code, and the line that a thread is at."""
    place, who = report.where(report.site(frame)), "host code"
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code is Task._main.__code__ else None
        if owner is not None:
            who = owner.name
        frame = frame.f_back
    return f"{who} at {place}"
