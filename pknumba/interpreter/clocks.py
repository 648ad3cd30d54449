"""Vector clocks: who is ordered after whom.

A clock is an int32 vector with one component per role, per role's bulk-store queue (source read, target written), per
role's multiplications and per load in flight. An access at (component, epoch) happened before everyone whose clock has
reached that epoch. Vectors grow lazily: a component beyond a vector's end counts as epoch 0.
"""

import numpy as np


def join(clock, other):
    """The element-wise maximum, in place where `clock` is long enough. The caller must own `clock` and keep the result."""
    n, m = len(clock), len(other)
    if n == m:
        np.maximum(clock, other, out=clock)
        return clock
    if n > m:
        np.maximum(clock[:m], other, out=clock[:m])
        return clock
    grown = other.copy()
    np.maximum(grown[:n], clock, out=grown[:n])
    return grown


def advance(clock, component, epoch):
    """`clock` with `component` at `epoch` or later; a longer copy where it was too short."""
    if component >= len(clock):
        grown = np.zeros(max(2 * len(clock), component + 1), np.int32)
        grown[:len(clock)] = clock
        clock = grown
    if clock[component] < epoch:
        clock[component] = epoch
    return clock


def covers(clock, component, epoch):
    """Whether whoever has `clock` is ordered after `epoch` of `component`."""
    return component < len(clock) and clock[component] >= epoch


class Components:
    """Hands out clock components, and takes back those of a rank's finished launches.

    A later launch of the same rank starts from the rank's stream clock, which covers the last epoch of everything the
    earlier ones did; so one that goes on counting in an old component is exact, and a thousand launches need no more
    components than one.
    """

    def __init__(self):
        self.count, self.capacity, self._free = 0, 64, {}

    def take(self, rank):
        """(component, last epoch that was used in it)."""
        free = self._free.get(rank)
        if free:
            return free.pop()
        self.count += 1
        while self.count > self.capacity:
            self.capacity *= 2
        return self.count - 1, 0

    def give_back(self, rank, pairs):
        """Components (with their last epochs) that the stream clock of `rank` now covers."""
        self._free.setdefault(rank, []).extend(pairs)

    def vector(self):
        return np.zeros(self.capacity, np.int32)

    def copy(self, clock):
        """A copy, lengthened to the present capacity."""
        if len(clock) == self.capacity:
            return clock.copy()
        return join(self.vector(), clock)
