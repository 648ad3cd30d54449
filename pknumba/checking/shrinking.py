"""Makes a failing schedule small: the fewest switches between roles that still fail (delta debugging over what ran)."""

import time


class Attempt:
    """What came of one run that followed a schedule.

    Attributes:
        error: the failure, or None. schedule: what really ran, [(label, steps)]. events: interpreter.Event of it.
    """

    def __init__(self, run, schedule=None, trace=True, **options):
        self.error = self.session = None
        try:
            run(self._keep, **options, schedule=schedule, trace=trace)
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
    (between them there are as few switches as possible); ``straight``: it also fails in the run that switches only where a role
    must wait; ``tries``: how many schedules were tried."""

    def __init__(self, found):
        self.attempt, self.entries, self.tries, self.straight = found, found.schedule, 0, False


def shrink(run, found, seconds=10.0, **options):
    """Cut entries out of the schedule of a failed run as long as it still fails in the same way.

    Args:
        run: function (keep, **options of Session) that plays the problem. found: Attempt that failed. seconds: when to stop.
        options: of Session.

    Returns: Shrunk.
    """
    best, start = Shrunk(found), time.monotonic()

    def fails(entries, share=0.6):
        if time.monotonic() - start > share * seconds:
            return False
        best.tries += 1
        attempt = Attempt(run, entries, trace="order", **options)
        if not attempt.same(found) or attempt.switches > best.attempt.switches:
            return False
        best.attempt, best.entries = attempt, entries
        return True

    if fails([]):
        best.straight = True                            # a short look is enough: the bug needs no choice
        _fewer_lanes(best.attempt.schedule, lambda entries: fails(entries, 0.1))
        _join(best, lambda entries: fails(entries, 0.2))
    else:
        _minimise(_fewer_lanes(_prefix(list(found.schedule), fails), fails), fails)
        _join(best, lambda entries: fails(entries, 1.0))
    if best.tries:
        best.attempt = Attempt(run, best.entries, **options)    # once more, with what everybody did
    return best


def _prefix(entries, fails):
    """The shortest beginning that fails, by bisection."""
    low, high = 0, len(entries)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(entries[:middle]) else (middle, high)
    return entries[:high]


def _fewer_lanes(entries, fails):
    """Leave out everything that one role does of its own, where it fails without too: most roles have nothing to do with it."""
    for lane in dict.fromkeys(_lane(label) for label, _ in entries):
        rest = [entry for entry in entries if _lane(entry[0]) != lane]
        if len(rest) < len(entries) and fails(rest):
            entries = rest
    return entries


def _join(best, fails):
    """Let whoever goes on later go on at once, where it fails without the switch too."""
    i = 0
    while i < len(best.attempt.schedule) - 2:
        entries = best.attempt.schedule
        label, steps = entries[i]
        j = next((j for j in range(i + 1, len(entries)) if entries[j][0] == label), None)
        if j is None or not fails([*entries[:i], (label, steps + entries[j][1]), *entries[i + 1:j], *entries[j + 1:]]):
            i += 1


def _lane(label):
    """The role that a label belongs to, with its operations."""
    return label.split(" of ", 1)[-1]


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
