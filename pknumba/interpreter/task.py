"""Tasks: greenlets that the session switches between. A role of a kernel is one, and so is the host code of a rank."""

from greenlet import GreenletExit, getcurrent, greenlet

from ..errors import ContractError
from .clocks import advance, covers


class Task(greenlet):
    """Something the session runs until it pauses, blocks or ends.

    Attributes:
        waiting: what it is parked on, an object with ``describe(task)``; None while it can run.
        wanted: the value it waits for, for the description. since: step at which it began to wait; None without tracing.
        error: the exception that ended it.
        plain: where its last wait for a counter stands, if that said that no bulk copies follow.
        met: the register tile that its last wait for products covered, or the name of the shared tile of its last fence, until it does
            something that the threads of a worker do apart.
        cost, until: in virtual time, seconds that it has spent since it last paused, and when it may go on at the earliest.
    """

    block = role = part = priority = plain = met = None
    order, cost, until = 0, 0.0, 0.0

    def __init__(self, session, rank, name, fn):
        super().__init__(self._main)
        self.session, self.rank, self.name, self.fn = session, rank, name, fn
        self.rng = session.rng
        self.waiting = self.waiting_site = self.wanted = self.since = self.error = None
        self.started = False

    @property
    def label(self):
        """Its name in a schedule."""
        return self.name

    def _main(self):
        try:
            self.fn()
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.fn = None              # what it holds may be freed

    def pause(self):
        """Let others go first."""
        self.session.hub.switch()
        if self.session.closing:
            raise GreenletExit

    def park(self, waiting, wanted=None):
        """Give way until somebody wakes this task; the caller checks its condition again."""
        self.waiting, self.wanted, self.since = waiting, wanted, self.session.now
        self.session.blocked[self] = None
        self.pause()


class HostTask(Task):
    """Host code of one rank."""


def rest(steps=1):
    """Host code lets others go first, that many times: a rank that comes late. Does nothing outside a session."""
    task = getcurrent()
    for _ in range(steps):
        if isinstance(task, HostTask):
            task.pause()


class RoleTask(Task):
    """One worker of a role in one block.

    Attributes:
        rank, block, role, part, name, session, rng: who it is.
        stores: its bulk stores (BulkStores).
        clock: its vector clock; None without race checking. first: its own epoch when it starts.
    """

    def __init__(self, launch, block, role, part, fn, order):
        number = f" {part}" if role.workers > 1 else ""
        super().__init__(launch.session, launch.rank, f"rank {launch.rank} block {block.number} {role.name}{number}", fn)
        self.launch, self.block, self.role, self.part, self.order = launch, block, role, part, order
        self.clock, self.slots, self.queues, self.sites = None, [], {}, {}
        self.stores = self.turn = None
        self.multiplications, self.multiplied, self.issued, self.added = [], 0, 0, set()

    def begin(self, clock):
        """Start from the launch's clock, in a component of its own."""
        self.component, last = self.session.components.take(self.rank)
        self.first = last + 1
        self.clock = advance(self.session.components.copy(clock), self.component, last + 1)

    def tick(self):
        """After a release: what this role does next is not part of what it released."""
        self.clock[self.component] += 1

    @property
    def epoch(self):
        return int(self.clock[self.component])

    def slot(self):
        """(component, epoch) for a load: a component whose last load this role knows to have ended, or a new one.

        Exact for any number in flight, unlike a fixed pool.
        """
        clock, slots = self.clock, self.slots
        for i, (component, last) in enumerate(slots):
            if covers(clock, component, last):
                del slots[i]
                break
        else:
            component, last = self.session.components.take(self.rank)
        slots.append((component, last + 1))
        return component, last + 1

    def queue(self, name):
        """(component, next epoch) of an in-order queue of this role: "read", "written" or "mma".

        Waits cover a prefix of such a queue, so one component for all of its operations is exact.
        """
        component, last = self.queues.get(name) or self.session.components.take(self.rank)
        self.queues[name] = component, last + 1
        return component, last + 1

    def used(self):
        """[(component, last epoch)] of everything this role did."""
        return [(self.component, self.epoch)] + self.slots + list(self.queues.values())


def running():
    """The role that runs now, or None."""
    task = getcurrent()
    return task if task.__class__ is RoleTask else None


def current():
    """The role that runs now: .rank .block .role .part .name .session .rng .stores. ContractError outside a kernel."""
    task = getcurrent()
    if task.__class__ is not RoleTask:
        raise ContractError("primitive: called outside a kernel. Primitives run in the roles of a launch. Call the operator, or "
                            "launch the role through its template.")
    return task
