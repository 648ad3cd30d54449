"""The number of a call, ``g.epoch``: every role of a kernel reads it when it starts, and one of them writes the next, while others may not
have started."""

from functools import lru_cache

from ..errors import ProtocolError
from ..tiles import record_type
from .clocks import covers
from .report import origin, site, where
from .task import current, running


def globals_of(fields):
    """``g`` of a launch: a named tuple of these fields that knows which roles look at ``g.epoch``."""
    return _kind(tuple(fields))(**fields)


@lru_cache(64)
def _kind(names):
    plain, at = record_type("Globals", *names), names.index("epoch")
    return type("Globals", (plain,), {"__slots__": (), "epoch": property(lambda g: number_of(g[at]))})


class Kept:
    """Who has written the next number, and what was ordered before that."""

    def __init__(self, task):
        self.task, self.place, self.clock = task, site(), task.clock.copy()

    def check(self, reader):
        """ProtocolError unless that role started before in every schedule."""
        if not covers(self.clock, reader.component, reader.first):
            raise ProtocolError(
                f"{self.task.name} at {where(self.place)}: keep_epoch: nothing orders the start of {reader.name} before it. A role reads "
                "g.epoch when it starts; come late, it takes the next call's number for this one's. Wait for something that every block "
                "does in this call first.", **origin(self.task, self.place), reader=reader.name)


def number_of(value):
    """``value``, the call's number, which the current role has looked at."""
    task = running()
    if task is not None and task.clock is not None and task not in task.launch.readers:
        task.launch.readers[task] = None
        if task.launch.kept is not None:
            task.launch.kept.check(task)
    return value


def keep_epoch():
    """The current role writes the next call's number. ProtocolError unless all roles that look at ``g.epoch`` have started before."""
    task = current()
    if task.clock is not None:
        task.launch.kept = kept = Kept(task)
        for reader in task.launch.readers:
            kept.check(reader)
