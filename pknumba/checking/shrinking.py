"""Makes a failing schedule small: the fewest switches between roles that still fail (delta debugging over what ran)."""

import time


class Attempt:
    """What came of one run that followed a schedule.

    Attributes:
        error: the failure, or None. schedule: what really ran, [(label, steps)]. events: interpreter.Event of it.
    """

    def __init__(self, run, schedule=None, **options):
        self.error = self.session = None
        try:
            run(self._keep, **options, schedule=schedule, trace=True)
        except Exception as error:                      # noqa: B902 - whatever a kernel does wrong is a finding
            self.error = error
        self.schedule, self.events = (self.session.schedule(), self.session.events) if self.session else ([], [])

    def _keep(self, session):
        self.session = session

    @property
    def switches(self):
        """How often someone else went on."""
        return max(len(self.schedule) - 1, 0)

    def same(self, other):
        """Whether both failed in the same way."""
        return self.error is not None and type(self.error) is type(other.error)


class Shrunk:
    """The smallest failing schedule that was found. ``attempt``: its run; ``entries``: [(label, steps)] that bring it about
    (between them there are as few switches as possible); ``tries``: how many schedules were tried."""

    def __init__(self, found):
        self.attempt, self.entries, self.tries, self.original = found, found.schedule, 0, found.switches


def shrink(run, found, seconds=10.0, **options):
    """Cut entries out of the schedule of a failed run as long as it still fails in the same way.

    Args:
        run: function (keep, **options of Session) that plays the problem. found: Attempt that failed. seconds: when to stop.
        options: of Session.

    Returns: Shrunk.
    """
    best, end = Shrunk(found), time.monotonic() + seconds

    def fails(entries):
        if time.monotonic() > end:
            return False
        best.tries += 1
        attempt = Attempt(run, entries, **options)
        if not attempt.same(found):
            return False
        if attempt.switches <= best.attempt.switches:
            best.attempt, best.entries = attempt, entries
        return True

    if fails([]):
        return best
    entries = _prefix(list(found.schedule), fails)
    _minimise(entries, fails)
    return best


def _prefix(entries, fails):
    """The shortest beginning that fails, by bisection."""
    low, high = 0, len(entries)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(entries[:middle]) else (middle, high)
    return entries[:high]


def _minimise(entries, fails):
    """ddmin (Zeller, Hildebrandt 2002): drop ever smaller parts."""
    parts = 2
    while len(entries) >= 2:
        size = -(-len(entries) // parts)
        for start in range(0, len(entries), size):
            rest = entries[:start] + entries[start + size:]
            if fails(rest):
                entries, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                return
            parts = min(2 * parts, len(entries))
