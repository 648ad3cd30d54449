"""What a run moves and how long it would take: the score of the notebooks."""

from collections import Counter
from dataclasses import dataclass, field

from .drawing import Picture
from ..checking import timeline
from ..interpreter import VirtualTime
from ..tuning import H200

__all__ = ["Meter", "Score"]

#: Workers of one role of an SM that a timeline shows one by one.
ALIKE = 3


class Meter(VirtualTime):
    """Virtual time of a card that also counts bytes: read and written in a rank's own memory, and in that of peers."""

    def __init__(self, hardware=H200):
        super().__init__(hardware)
        self.moved = Counter()

    def _global(self, task, region, nbytes, by, write, combine=None):
        where = "own" if self._home(task, region) == self.card(task.rank) else "peer"
        self.moved[f"{where} {'written' if write else 'read'}"] += nbytes
        return super()._global(task, region, nbytes, by, write, combine)


@dataclass
class Score:
    """Of a run: all ranks together.

    Attributes:
        seconds: predicted, on an H200 for each rank. moved: bytes by kind. values: what ``main`` returned on every rank. events: for
            a picture.
    """

    seconds: float
    moved: Counter
    values: list = field(default_factory=list)
    events: list = field(default_factory=list)

    @property
    def us(self):
        """Predicted microseconds."""
        return self.seconds * 1e6

    @property
    def to_peers(self):
        """Bytes that cross a link."""
        return self.moved["peer read"] + self.moved["peer written"]

    def picture(self, title="", last_us=None, width=900):
        """The timeline: a row for each role that has something to do, microseconds to the right. Of more than ``ALIKE`` workers of a
        role the first stands for all."""
        often = Counter(e.lane.rpartition(" of ")[2] for e in self.events)
        events = _first_of_many([e for e in self.events if often[e.lane.rpartition(" of ")[2]] > 2])
        first, end = min((e.begin for e in events), default=0), max((e.end for e in events), default=0)
        last = int(last_us * 1000) if last_us else end - first + 50
        return Picture(timeline.svg(events, title, last=last, width=width, per_us=1000))

    def __str__(self):
        said = ", ".join(f"{kind} {n:,} B" for kind, n in sorted(self.moved.items()) if n)
        return f"predicted {self.us:.1f} µs on an H200; {said or 'nothing moved'}"

    def __repr__(self):
        return str(self)


def _first_of_many(events):
    """The events without those of the second and later workers of roles that have many; the first is called "consumer 0 (+7)"."""
    workers = {}
    for e in events:
        role, _, number = e.lane.rpartition(" of ")[2].rpartition(" ")
        if number.isdigit():
            workers.setdefault(role, set()).add(int(number))
    kept = []
    for e in events:
        issued, of, lane = e.lane.rpartition(" of ")
        role, _, number = lane.rpartition(" ")
        same = workers.get(role, ())
        if len(same) <= ALIKE:
            kept.append(e)
        elif int(number) == min(same):
            kept.append(e._replace(lane=f"{issued}{of}{lane} (+{len(same) - 1})"))
    return kept
