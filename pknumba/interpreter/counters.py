"""Counters between ranks: uint32 in global memory that only grow, with the clock of every addition."""

from ..errors import ProtocolError
from .clocks import covers, join
from .report import error, names
from .task import current

_MASK = 0xffffffff
#: Additions to one counter that are kept apart; beyond it the older half counts as one (misses a race, never invents one).
_KEEP = 1024


def reached(value, target):
    """value >= target, for counters that wrap."""
    return (value - target) & _MASK < 0x80000000


class _Additions:
    """What the session knows about one counter: the clocks of its additions and who waits."""

    __slots__ = ("owner", "log", "waiters", "by", "expected", "seen", "known")

    def __init__(self, owner):
        self.owner = owner
        self.log = []           # (value after it, clock of this and all earlier ones, component, epoch)
        self.waiters, self.by, self.expected = [], [], None
        self.known = None       # value after the last addition that was forgotten because its reader is ordered after it anyway
        self.seen = []          # in virtual time: (value after an addition, when its waiters see it)

    def add(self, before, after, task, release):
        self._follow(before)
        self.by.append(task.name)
        del self.by[:-64]
        if task.session.races:
            clock = task.clock.copy() if release else task.clock * 0
            if self.log:
                clock = join(clock, self.log[-1][1])
            self.log.append((after, clock, task.component, task.epoch))
            if len(self.log) > _KEEP:
                del self.log[:_KEEP // 2]
            task.tick()
        self.expected = after

    def _follow(self, value):
        """Forget the additions if the host has set the counter since."""
        if self.expected is not None and value != self.expected:
            self.log, self.by, self.known = [], [], None
        self.expected = value

    def acquire(self, value, target, task):
        """Join what made the counter reach `target`, not what came later."""
        self._follow(value)
        if self.known is not None and reached(self.known, target):
            return
        for after, clock, *_ in self.log:
            if reached(after, target):
                task.clock = join(task.clock, clock)
                break

    def prune(self, stream):
        """Forget the additions that all later launches of the rank that waits are ordered after anyway."""
        n = 0
        while n < len(self.log) and covers(stream, *self.log[n][2:]):
            n += 1
        if n:
            self.known = self.log[n - 1][0]
            del self.log[:n]


class Counters:
    """uint32 counters of every rank.

    Args:
        name: for reports.
        arrays: one array per rank: uint32[n], or uint32[n, ranks] whose row is a counter with a slot per rank that adds
            (several processes need no atomics then; the value is the row's sum).
        rank: whose counters ``wait`` reads.
        whole: for every rank its number in the whole world, by which launches are counted; None: the same.
    """

    def __init__(self, name, arrays, rank, whole=None):
        self.name, self.arrays, self.rank = name, list(arrays), rank
        self.whole = range(len(arrays)) if whole is None else whole
        self.world_size = len(self.arrays)
        self.slots, self._places = arrays[rank].ndim == 2, {}

    def add(self, peer, number, n=1, release=True):
        """Add `n` to a counter of `peer` (release, system scope; relaxed: who waits for it is ordered after nothing).

        PTX: red.release.sys.global.add.u32.
        """
        task, peer, number = current(), int(peer), int(number)
        session = task.session
        array = self._of(peer, number, task)
        before = self._value(array, number)
        after = (before + int(n)) & _MASK
        if self.slots:
            array[number, self.rank] = (int(array[number, self.rank]) + int(n)) & _MASK
        else:
            array[number] = after
        session.published()
        additions = self._additions(session, peer, number)
        additions.add(before, after, task, release)
        if session.time is not None:
            additions.seen.append((after, session.time.now + session.time.signal_s(self.rank, peer)))
            del additions.seen[:-64]
        session.adders.setdefault(self.name, set()).add(task.role.name)
        task.added.add(self.name)
        if session.events is not None:
            session.note(task, "signal", f"signals {self.name}[{number}] of rank {peer} (now {after})")
        waiters, additions.waiters = additions.waiters, []
        for waiter in waiters:
            if reached(after, waiter.wanted[3]):
                session.wake(waiter)
            else:
                additions.waiters.append(waiter)
        task.pause()

    def wait(self, number, value):
        """Until the own counter is >= `value` (acquire, system scope; wraps). PTX: ld.acquire.sys.global.u32."""
        task, number, value = current(), int(number), int(value) & _MASK
        begun, time = task.session.now, task.session.time
        looked = time and time.now + time.hw.touch_s                    # a look at memory, also where nothing is waited for
        task.pause()
        array = self._of(self.rank, number, task)
        additions = self._additions(task.session, self.rank, number)
        while not reached(self._value(array, number), value):
            additions.waiters.append(task)
            task.park(self, (array, number, additions, value))
        if time is not None:
            task.until = max(task.until, looked, next((at for after, at in additions.seen if reached(after, value)), 0.0))
            task.pause()
        if task.session.races:
            additions.acquire(self._value(array, number), value, task)
        if begun is not None:
            task.session.note(task, "wait", f"{self.name}[{number}] >= {value}", begun)

    def value(self, number):
        """The own counter's present value, without acquiring anything."""
        return self._value(self.arrays[self.rank], int(number))

    def _value(self, array, number):
        return sum(array[number].tolist()) & _MASK if self.slots else int(array[number])

    def _of(self, peer, number, task):
        if not 0 <= peer < len(self.arrays) or self.arrays[peer] is None:
            raise error(ProtocolError, task, f"counters {self.name}: no counters of rank {peer} among {len(self.arrays)} ranks.")
        if not 0 <= number < len(self.arrays[peer]):
            raise error(ProtocolError, task, f"counters {self.name}: number {number} of {len(self.arrays[peer])}.")
        return self.arrays[peer]

    def _additions(self, session, peer, number):
        place = self._places.get(peer)
        if place is None or place[0] is not session:
            array = self.arrays[peer]
            memory = session.memory(array, f"{self.name} of rank {peer}")
            place = self._places[peer] = session, memory.counters, array.__array_interface__["data"][0], array.strides[0]
        _, known, start, stride = place
        address = start + number * stride
        found = known.get(address)
        if found is None:
            found = known[address] = _Additions(self.whole[peer])
        return found

    def ready(self, task):
        """Whether what a parked `task` waits for has come true (another process may have added)."""
        array, number, _, value = task.wanted
        return reached(self._value(array, number), value)

    def forget(self, task):
        """`task` is woken by other means than an addition of this process."""
        task.wanted[2].waiters.remove(task)

    def begun(self, task):
        """Whether some of the ranks' additions for this target are there."""
        array, number, _, value = task.wanted
        return 0 < (value - self._value(array, number)) & _MASK < len(self.arrays)

    def awaits(self, task):
        """The tasks that may still add: of roles that have added to these counters, on ranks that have not in this round.

        Who has added and now waits for these counters too has met its part of a barrier.
        """
        array, number, additions, value = task.wanted
        roles = task.session.adders.get(self.name, ())
        missing = (value - self._value(array, number)) & _MASK
        here = len(self.arrays) - missing
        came = {name.split(" block ")[0] for name in additions.by[-here:]} if here > 0 else ()
        return [t for launch in task.session.launches.values() for block in launch.blocks.values() for t in block.tasks
                if t is not task and t.role.name in roles and f"rank {t.rank}" not in came
                and not (self.name in t.added and getattr(t.waiting, "name", None) == self.name)]

    def progress(self, task):
        """(expected, seen) value."""
        array, number, _, value = task.wanted
        return value, self._value(array, number)

    def describe(self, task):
        array, number, additions, value = task.wanted
        if self.slots:
            by = f"by source rank: {array[number].tolist()}"
        else:
            by = f"added to so far by {names(additions.by[::-1])}"
        return f"{self.name}[{number}] of rank {self.rank} >= {value} (is {self._value(array, number)}; {by})"
