"""A launch: the blocks of one kernel on one rank, how many of them fit at once, and how it ends."""

from math import prod

from greenlet import getcurrent

from ..errors import ConfigError, ProtocolError
from .clocks import advance, covers, join
from .operations import BulkStores, check_drained
from .report import where
from .semaphore import SemaphoreRing
from .task import HostTask, RoleTask
from .tiles import Arena, SharedTile, dtype_of

#: Blocks that a cluster may have on every device of sm_90.
CLUSTER_LIMIT = 8


class Block:
    """One thread block: its shared memory, semaphores and tasks."""

    def __init__(self, launch, number):
        self.launch, self.number, self.label = launch, number, f"rank {launch.rank} block {number}"
        self.tasks, self.rings, self.turns, self.meetings, self.live = [], [], {}, {}, 0
        self._arena = None

    def __int__(self):
        return self.number

    __index__ = __int__

    def __str__(self):
        return str(self.number)

    @property
    def seat(self):
        """Its number in its cluster."""
        return self.number % self.launch.cluster

    def mates(self):
        """The blocks of its cluster, itself among them, in order."""
        first = self.number - self.seat
        return [self.launch.block(n) for n in range(first, first + self.launch.cluster)]

    @property
    def arena(self):
        """Its shared memory."""
        if self._arena is None:
            self._arena = Arena(self.label)
        return self._arena

    def tile(self, name, offset, decl):
        """The tile of declaration `decl` (tiles.Tile) at byte `offset` of the block's shared memory, full of NaN."""
        tile = SharedTile(self.arena, offset, decl.shape, dtype_of(decl.dtype), name)
        time = self.launch.session.time
        if time is None or time.values:
            tile.poison()
        return tile

    def check_left(self):
        """ProtocolError if a block of its cluster may arrive here when it has left."""
        clock = _joined(self.tasks)
        for ring in self.rings:
            for semaphore in ring.used():
                semaphore.check_left(clock)

    def leave(self):
        """It has ended. What refers to each other is parted, so that it is freed now and not by the collector of cycles."""
        for task in self.tasks:
            task.stores = task.multiplications = None
        if self._arena is not None:
            self._arena.shadow.clear()
        self.tasks, self.rings = [], []

    def semaphore(self, name, decl, arrivals):
        """The semaphores of declaration `decl` (tiles.Semaphore), each completed by `arrivals` arrivals."""
        ring = SemaphoreRing(self, name, decl, arrivals)
        self.rings.append(ring)
        return ring


class Launch:
    """One kernel on one rank. Declare blocks and roles, then wait().

    Attributes:
        flying: asynchronous operations that have not taken their last step.
        queued: blocks that wait for room.
        readers: roles that have looked at the call's number. kept: who has written the next one, or None.
    """

    def __init__(self, session, rank, name, grid, resident, cluster=1):
        self.session, self.rank, self.name, self.resident, self.cluster = session, rank, name, resident, cluster
        self.grid = grid if isinstance(grid, int) else prod(grid)
        if resident is not None and resident < 1:
            raise ConfigError(f"launch {name}: resident = {resident}. At least one block must fit.")
        if not 1 <= cluster <= CLUSTER_LIMIT or self.grid % cluster:
            raise ConfigError(f"launch {name}: {self.grid} blocks in clusters of {cluster}. A cluster has 1 to {CLUSTER_LIMIT} blocks, and "
                              "a grid whole clusters.")
        self.blocks, self.queued, self.running, self.live, self.flying = {}, [], 0, 0, 0
        self.started = self.ended = False
        self._host = self._clock = self.kept = None
        self.readers = {}

    def block(self, number):
        """The block of that number."""
        if not 0 <= number < self.grid:
            raise ConfigError(f"launch {self.name}: block {number} of a grid of {self.grid}.")
        found = self.blocks.get(number)
        if found is None:
            found = self.blocks[number] = Block(self, number)
        return found

    def role(self, block, role, part, fn):
        """fn() is worker `part` of `role` (tiles.Role) in `block`."""
        task = RoleTask(self, block, role, part, fn, self.live)
        task.stores = BulkStores(task)
        block.tasks.append(task)
        block.live += 1
        self.live += 1

    def wait(self):
        """Start the launch unless that has happened, and return when it has ended and its copies have landed."""
        self._start()
        host = getcurrent()
        if isinstance(host, HostTask) and host.session is self.session:
            while not self.ended:
                self._host = host
                host.park(self)
        elif not self.ended:
            self.session.run()

    def awaits(self, task):
        """Its roles that have not ended."""
        return [t for b in self.blocks.values() for t in b.tasks if not t.dead]

    def describe(self, task):
        left = sum(b.live > 0 for b in self.blocks.values())
        return f"launch {self.name} to end ({left} of {self.grid} blocks have not)"

    # ---- the session's side
    def _start(self):
        if self.started:
            return
        self.started = True
        if self.session.races:
            self._clock = self.session.components.copy(self.session.stream(self.rank))
        self.queued = [b for _, b in sorted(self.blocks.items()) if b.tasks]
        self.admit()
        self.check_end()

    @property
    def fits(self):
        """Whether a cluster more may run beside those of this launch that do, whoever else is on the card."""
        return self.resident is None or self.running + self.cluster <= self.resident

    def admit(self):
        """Start queued blocks as long as there is room."""
        while self.queued and self.fits and self.session.card.room(self.cluster):
            blocks, self.queued = self.queued[:self.cluster], self.queued[self.cluster:]
            self.running += self.cluster
            self.session.card.take(self.cluster)
            for task in (t for block in blocks for t in block.tasks):
                if self._clock is not None:
                    task.begin(self._clock)
                if self.session.time is not None:
                    task.cost = self.session.time.hw.launch_s
                self.session.begin(task)

    def role_ended(self, task):
        check_drained(task)
        block = task.block
        block.live -= 1
        self.live -= 1
        if all(b.live == 0 for b in block.mates()):         # their SMs are given out together
            self.running -= self.cluster
            self.session.card.left(self, self.session)
        self.check_end()

    def leave(self):
        """Let go of the blocks, and their shared memory with them. The collector of cycles does not see dictionaries of greenlets."""
        for block in self.blocks.values():
            block.leave()
        self.blocks, self.readers, self.kept = {}, {}, None

    def check_end(self):
        """End the launch once its roles have ended and nothing is in flight."""
        if self.live or self.flying or self.ended or not self.started:
            return
        self.ended = True
        for block in self.blocks.values():
            for ring in block.rings:
                for semaphore in ring.used():
                    semaphore.check_end()
        if self.session.races:
            self._join_clocks()
        self.leave()
        if self._host is not None:
            self.session.wake(self._host)

    def _join_clocks(self):
        """The stream is ordered after everything this launch did; its clock components may be used again."""
        session, total = self.session, self._clock
        for block in self.blocks.values():
            if block.tasks and not block.seat:
                mates = block.mates()
                total = join(total, _end_of([t for b in mates for t in b.tasks]))
                if len(mates) > 1:
                    for mate in mates:
                        mate.check_left()
        session.join_stream(self.rank, total)
        stream = session.stream(self.rank)
        session.components.give_back(self.rank, [pair for b in self.blocks.values() for t in b.tasks for pair in t.used()])
        for memory in session.memory:
            for additions in memory.counters.values():
                if additions.owner == self.rank and additions.log:
                    additions.prune(stream)


def _joined(tasks):
    """The clock of them all."""
    clock = tasks[0].clock.copy()
    for task in tasks[1:]:
        clock = join(clock, task.clock)
    return clock


def _end_of(tasks):
    """The clock after the last role and copy of a cluster. ProtocolError if a load was still in flight when the roles ended."""
    clock = _joined(tasks)
    for task in tasks:
        for component, epoch in task.slots:
            if not covers(clock, component, epoch):
                place = where(task.sites.get(component))
                raise ProtocolError(f"{task.name}: ended while a load into its shared memory may be in flight, that of {place}. "
                                    "Nobody waits for its semaphore, and shared memory is gone when the block ends. Wait for every "
                                    "phase that a load completes.",
                                    rank=task.rank, block=int(task.block), role=task.role.name, task=task.name)
        for component, epoch in task.used():
            clock = advance(clock, component, epoch)
    return clock
