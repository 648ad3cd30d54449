"""The session: one seeded scheduler for the roles and host code of all ranks of this process."""

import contextvars
import random
from contextlib import nullcontext

from greenlet import GreenletExit, getcurrent

from ..errors import ConfigError, ContractError, DeadlockError, HangError
from . import report
from .blas import one_blas_thread
from .card import Card
from .clocks import Components, join
from .history import History
from .launch import Launch
from .memory import Memories
from .operations import Operation
from .policies import queue
from .task import HostTask, RoleTask
from .virtual import Timed


class Session(History):
    """Runs kernels of all ranks in one process, as one interleaving that `seed` chooses.

    Args:
        seed: of the one random generator.
        policy: who goes next: fifo | random | pct (random priorities) | starve (one role, or the copy engine, goes last).
        completion: when asynchronous operations take effect: eager | random | late.
        races: check every access with vector clocks; ProtocolErrors about uninitialised or unfenced tiles need it too.
        max_switches: HangError after so many switches; None for no limit.
        watchdog: HangError in a role that runs so many seconds without calling a primitive; None for no limit.
        trace: keep who ran in ``.trace``, and what they did in ``.events``; "order": only who ran.
        schedule: [(label, steps)], as ``.schedule()`` gives it: repeat it, as far as it can be followed; `policy` then does nothing.
        time: VirtualTime: whoever is earliest goes next, policy and completion do nothing.
        heap: SharedHeap of ranks in other processes (turns race checking off).
        card_sms: SMs of one card that all ranks share: no more blocks run at once, and whose comes next where one ends is drawn.

    Attributes:
        switches, operations, accesses: how much work was done.
        reproduce: the line that failures end with; the world may set it.
    """

    def __init__(self, seed=0, policy="random", completion="random", races=True, max_switches=None, watchdog=None, trace=False,
                 heap=None, schedule=None, time=None, card_sms=None):
        if time is not None and heap is not None:
            raise ConfigError("session: virtual time over several processes. One clock orders all ranks. Use World.local.")
        super().__init__(trace, time)
        self.seed, self.policy, self.completion = seed, policy, completion
        self.races, self.max_switches, self.watchdog, self.heap = races and heap is None, max_switches, watchdog, heap
        self.rng = random.Random(seed)
        self._replayed = schedule
        self.queue = self._new_queue()
        self.components, self.memory = Components(), Memories()
        self.switches = self.operations = self.accesses = 0
        self.card = Card(card_sms, heap is None)
        self.blocked, self.tasks, self.launches, self.adders = {}, {}, {}, {}
        self.hub, self.closing, self.world_size = None, False, 1
        self._streams, self._published, self._reproduce, self._waiting_hosts = {}, {}, None, []

    # ---- what callers use
    def spawn_host(self, rank, fn):
        """Host code of a rank: fn() runs as a task in run()."""
        task = HostTask(self, rank, f"rank {rank} host", fn)
        self.world_size = max(self.world_size, rank + 1)
        self.begin(task)
        return task

    def rank_of(self, rank):
        """That rank's number in the whole world."""
        return rank

    def launch(self, rank, name, grid, resident=None, cluster=1):
        """A Launch of `grid` blocks on `rank`, of which `resident` fit at once (None: all), in clusters of `cluster` blocks. It starts in
        Launch.wait().

        Called from a host task, or from plain code while run() is not running.
        """
        self.world_size = max(self.world_size, rank + 1)
        earlier = self.launches.get(rank)
        if earlier is not None and earlier.started and not earlier.ended:
            earlier.wait()
        launch = self.launches[rank] = Launch(self, rank, name, grid, resident, cluster)
        return launch

    def block_host(self, condition, why):
        """Park the host task until condition() is true; it orders this rank's later launches after those of the others.

        Call it also where the condition holds already: what each rank's launches did before its latest call is visible
        to every rank that returns from one.

        Args:
            condition: function of no arguments, asked again after other host code has run.
            why: what it waits for, for the deadlock report: text, or a function that returns it.
        """
        host = getcurrent()
        if self.races and isinstance(host, HostTask):
            self._published[host.rank] = self.stream(host.rank).copy()
        if isinstance(host, HostTask):
            host.pause()
            while not condition():
                self._waiting_hosts.append((host, condition))
                host.park(_Why(why))
        elif not condition():
            self.run()
            if not condition():
                raise DeadlockError(f"host: waits for {_Why(why).describe(None)}, and nothing runs that could bring it about.")
        if self.races and isinstance(host, HostTask):
            for clock in self._published.values():
                self._streams[host.rank] = join(self.stream(host.rank), clock)

    def run(self):
        """Run until every task has ended. Raises the first error, after all other tasks have been stopped."""
        if self.hub is not None:
            raise ContractError("session: run() called by one of its own tasks. Wait for a launch instead.")
        self.hub, self.closing = getcurrent(), False
        self._context = contextvars.copy_context()
        try:
            with one_blas_thread(), self._guard() as guard:
                self._loop(guard)
        except BaseException as failure:
            report.finish(failure, self)
            self._fail(failure)
            raise
        finally:
            self.hub = None

    @property
    def reproduce(self):
        options = f'executor="interpreter", seed={self.seed}, policy="{self.policy}", completion="{self.completion}"{self.card.told}'
        if self.heap is not None and not self._reproduce:
            return f"World.mpi({options}) on {self.heap.size} ranks (the order between processes may differ)"
        return self._reproduce or f"World.local({self.world_size}, {options})"

    @reproduce.setter
    def reproduce(self, line):
        self._reproduce = line

    # ---- what the interpreter uses
    def begin(self, task):
        """Make a new task runnable."""
        self.tasks[task] = None
        self.queue.add(task)

    def wake(self, task):
        """Let a parked task check its condition again."""
        if task.waiting is not None:
            task.waiting = task.wanted = None
            del self.blocked[task]
            self.queue.add(task)

    def stream(self, rank):
        """The clock of the rank's stream: what its next launch is ordered after."""
        clock = self._streams.get(rank)
        if clock is None:
            clock = self._streams[rank] = self.components.vector()
        return clock

    def join_stream(self, rank, clock):
        self._streams[rank] = join(self.stream(rank), clock)

    def idle(self):
        """Nothing of this process can move. Whether something could, after all: ranks of other processes may have added."""
        return self.heap is not None and self.heap.idle(self)

    def published(self):
        """A counter has been added to."""
        if self.heap is not None:
            self.heap.published()

    def lock(self, region):
        """Context in which no other process combines into `region`."""
        return _FREE if self.heap is None else self.heap.lock(region)

    # ---- the loop
    def _new_queue(self):
        return Timed(self.time) if self.time is not None else queue(self.policy, self.completion, self.rng, self._replayed)

    def _loop(self, guard):
        queue, trace = self.queue, self.trace
        while True:
            item = queue.next()
            if item is None:
                if self._settle():
                    continue
                return
            if trace is not None:
                trace.append(item.label)
            if item.__class__ is Operation:
                self._step(item)
            else:
                self.switches += 1
                if guard is not None:
                    guard.beat(item)
                self._resume(item)

    def _step(self, operation):
        if self.events is not None:
            self.note_step(operation)
        operation.steps[operation.position]()
        operation.position += 1
        if operation.position < len(operation.steps):
            self.queue.add_operation(operation)
        else:
            operation.steps = ()        # what they belong to refers to it
            operation.launch.flying -= 1
            operation.launch.check_end()

    def _resume(self, task):
        if not task.started:
            # entered from the hub: a greenlet inherits the depth of the frame it is first entered from
            task.started, task.parent, task.gr_context = True, self.hub, self._context.copy()
        task.switch()
        if task.dead:
            del self.tasks[task]
            if task.error is not None:
                self._explain(task)
                raise task.error
            if isinstance(task, RoleTask):
                task.launch.role_ended(task)
            else:
                self._ask_hosts()
        elif task.waiting is None:
            self.queue.add(task)
        if isinstance(task, HostTask):
            self._ask_hosts()
        if self.max_switches is not None and self.switches >= self.max_switches:
            raise HangError(f"session: {self.switches} switches and no end. The limit is max_switches = {self.max_switches}. "
                            "Raise it, or look for roles that wake each other for ever.")

    def _ask_hosts(self):
        """Wake the hosts whose conditions have come true. Whether there were any."""
        waiting, self._waiting_hosts = self._waiting_hosts, []
        woken = False
        for host, condition in waiting:
            if condition():
                self.wake(host)
                woken = True
            else:
                self._waiting_hosts.append((host, condition))
        return woken

    def _settle(self):
        """Nothing is ready or in flight: True to go on, False if all has ended, DeadlockError otherwise."""
        if self._ask_hosts() or self.idle():
            return True
        if not self.blocked:
            return False
        raise self.deadlock()

    def deadlock(self):
        """The DeadlockError that names every parked task."""
        queued = [(launch, [b.number for b in launch.queued]) for launch in self.launches.values() if launch.queued]
        text, rows = report.deadlock(self.blocked, len(self.tasks), queued)
        return DeadlockError(text, waiting=rows, report=text)

    def _explain(self, task):
        """Say where an exception of the kernel itself came from."""
        if not hasattr(task.error, "data") and hasattr(task.error, "add_note"):
            task.error.add_note(f"raised in {task.name}")

    def _guard(self):
        if self.watchdog is None:
            return nullcontext()
        from .watchdog import Watchdog
        return Watchdog(self.watchdog)

    def _fail(self, failure):
        """Stop everything and forget what was in flight, so that the session can be used again."""
        if self.heap is not None:
            self.heap.failed(failure)
        self.closing = True
        for task in list(self.tasks):
            for _ in range(3):
                if task.started and not task.dead:
                    task.throw(GreenletExit)
        for launch in self.launches.values():
            launch.leave()
        self.tasks, self.blocked, self.launches, self._waiting_hosts = {}, {}, {}, []
        self.queue, self.card.occupied = self._new_queue(), 0
        for memory in self.memory:
            memory.shadow.clear()
            memory.counters.clear()
        self.components, self._streams, self._published = Components(), {}, {}


_FREE = nullcontext()


class _Why:
    """What a host task waits for."""

    def __init__(self, why):
        self.why = why

    def describe(self, task):
        return self.why() if callable(self.why) else self.why
