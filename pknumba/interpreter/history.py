"""What a traced session remembers: who ran, in order, and what each role did at which step."""

from collections import namedtuple
from itertools import groupby

from .report import site

#: Something that happened. ``begin``, ``end``: steps of the scheduler (equal unless a role waited), nanoseconds in virtual time; ``lane``:
#: label of the task or operation; ``rank``, ``block`` (None for host code), ``role``; ``kind``: "wait" | "arrive" | "signal" | "access" |
#: "fence" | "copy" | "mma"; ``place``: as ``report.site()`` gives it, or None.
Event = namedtuple("Event", "begin end lane rank block role kind text place")


class History:
    """Base of Session.

    Attributes:
        trace: labels of everything that took a step, in order; None without tracing and in virtual time.
        events: what they did (Event); None without tracing, or with ``trace="order"``.
        time: VirtualTime; None where steps take no time.
    """

    def __init__(self, trace, time=None):
        self.time = time
        self.trace, self.events = [] if trace and time is None else None, [] if trace and trace != "order" else None

    @property
    def now(self):
        """Number of the present step, or the present nanosecond of virtual time; None without tracing."""
        return None if self.events is None else len(self.trace) if self.time is None else round(self.time.now * 1e9)

    def note(self, task, kind, text, begun=None, place=None):
        """`task` did this now; it began to wait for it at step `begun`."""
        now, block = self.now, None if task.block is None else int(task.block)
        self.events.append(Event(now if begun is None else begun, now, task.label, task.rank, block,
                                 task.role and task.role.name, kind, text, place or site()))

    def note_step(self, operation):
        """An asynchronous operation takes its next step now."""
        task, now, begun = operation.task, self.now, self.now
        if self.time is not None:               # one event, from its issue to its end
            if operation.position < len(operation.steps) - 1:
                return
            begun = round(operation.begun * 1e9)
        self.events.append(Event(begun, now, operation.label, task.rank, int(task.block), task.role.name,
                                 "mma" if operation.name == "mma" else "copy", operation.step_text(), None))

    def schedule(self):
        """The order of this traced run as [(label, steps)]: ``Session(schedule=...)`` repeats it."""
        return [(label, len(list(same))) for label, same in groupby(self.trace)]
