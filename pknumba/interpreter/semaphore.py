"""Semaphores (mbarriers): arrivals, outstanding bytes, and the clocks of what completed each phase."""

from ..errors import ContractError, ProtocolError
from .clocks import covers, join
from .report import error, names, site, where
from .task import current, running


class SemaphoreRing:
    """The semaphores of one declaration: ``ring[i]``, which is made when somebody uses it."""

    def __init__(self, block, name, decl, arrivals):
        self.block, self.name, self.decl, self.arrivals, self.place = block, name, decl, arrivals, len(block.rings)
        self._used = {}

    def __len__(self):
        return self.decl.n

    def __getitem__(self, index):
        found = self._used.get(index)
        if found is None:
            number = int(index)
            if not 0 <= number < self.decl.n:
                raise error(ProtocolError, running(), f"semaphore {self.name}: index {number} of {self.decl.n}.")
            found = self._used[number] = Semaphore(self.block, f"{self.name}[{number}]", self.decl.by, self.arrivals,
                                                   (self.place, number), self.decl.of)
        return found

    def used(self):
        """Those that somebody has used, in order."""
        return [self._used[i] for i in sorted(self._used)]


class Semaphore:
    """An mbarrier: `arrivals` arrivals and no outstanding bytes complete a phase. One `of` a "cluster" stands for those of all its blocks.

    The phase is counted in full, so that a wait whose parity no longer says which phase it means is found. ``clock``
    collects what arrived in the open phase; ``complete_clock`` keeps that of the last two phases, by parity. ``strangers``: of each worker
    of another block that has arrived, when and where it last did.
    """

    __slots__ = ("block", "name", "by", "arrivals", "place", "of_cluster", "phase", "arrived", "pending_bytes", "arrived_by", "last_by",
                 "waiters", "seen", "owned", "clock", "complete_clock", "proof", "complete_proof", "strangers")

    def __init__(self, block, name, by, arrivals, place=(0, 0), of="block"):
        self.block, self.name, self.by, self.arrivals, self.place, self.of_cluster = block, name, by, arrivals, place, of == "cluster"
        self.phase = self.arrived = self.pending_bytes = 0
        self.arrived_by, self.last_by, self.waiters, self.seen, self.owned = [], [], [], {}, {}
        self.clock, self.complete_clock, self.strangers = None, [None, None], {}
        self.proof, self.complete_proof = [], [(), ()]

    # ---- the kernel's side
    def wait(self, phase):
        """Block until the phase of that parity is complete (acquire). PTX: mbarrier.try_wait.parity."""
        task, parity = current(), int(phase) & 1
        begun, task.met = task.session.now, None
        task.pause()
        last = self.seen.get(self._observer(task), -2)
        meant = self._meant(last, parity)
        if self.phase > meant + 1:
            meant = self._meant(max(last, self._known(task)), parity)
        if task.session.races and meant > self.owned.get(task.name, -1) + 1:
            self._check_lap(task, meant, parity)
        while True:
            if self.phase > meant + 1:
                raise error(ProtocolError, task, f"{self.name}: waits for phase {meant} (parity {parity}), but phases up to "
                                                 f"{self.phase - 1} have completed: the parity no longer identifies it. A role "
                                                 "may be at most one phase behind. Arrive only after the role that waits has "
                                                 "seen the phase before.", semaphore=self.name)
            if self.phase & 1 != parity:
                break
            self.waiters.append(task)
            task.park(self, (meant, parity))
        self.seen[self._observer(task)] = self.owned[task.name] = meant
        if task.session.races and self.complete_clock[parity] is not None:
            task.clock = join(task.clock, self.complete_clock[parity])
        if begun is not None:
            what = f"phase {meant} is complete" if meant >= 0 else "lets the first lap pass"
            task.session.note(task, "wait", f"{self.name} {what}", begun)

    def arrive(self, after=None):
        """One arrival of this worker, in a cluster on the semaphore of every block (release). PTX: mbarrier.arrive.

        after: the register tile or shared tile that shows that the worker's threads have met. ContractError if it does not.
        """
        task = current()
        if after is not None and task.met != getattr(after, "name", after):
            raise error(ContractError, task, f"{self.name}: arrives after {getattr(after, 'name', 'a register tile')}, which does not show "
                                             "that this worker's threads have met. What mma_wait has just returned does, or the tile of a "
                                             "fence_async just before. Pass that, or nothing.", semaphore=self.name)
        for block in self._blocks():
            self.of(block)._arrive(task, 0)
        self._after(task)

    def expect(self, nbytes):
        """Arrive, and announce `nbytes` that copies will complete. PTX: mbarrier.arrive.expect_tx."""
        task = current()
        if self.of_cluster and len(self._blocks()) > 1:
            raise error(ContractError, task, f"semaphore {self.name} is declared of=\"cluster\", {task.role.name} may not expect bytes on "
                                             "it. A block announces its own bytes on its own semaphore. Declare another one.",
                        semaphore=self.name)
        self._arrive(task, nbytes)
        self._after(task)

    def of(self, block):
        """The same semaphore in another block of the cluster."""
        ring, i = self.place
        return self if block is self.block else block.rings[ring][i]

    def _blocks(self):
        return self.block.mates() if self.of_cluster else (self.block,)

    def _after(self, task):
        if task.session.races:
            task.tick()
        task.pause()

    def _arrive(self, task, nbytes):
        if task.role.name != self.by:
            raise error(ContractError, task, f"semaphore {self.name} is declared by={self.by!r}, {task.role.name} may not arrive "
                                             "on it. Arrivals are counted in workers of that role. Declare another semaphore.",
                        semaphore=self.name)
        if task.session.races:
            self._release(task.clock, (task.component, task.epoch))
            if task.block is not self.block:
                self.strangers[task.component] = task.epoch, task, site()
        self.pending_bytes += int(nbytes)
        self.arrived += 1
        self.arrived_by.append(task.name)
        if task.session.events is not None:
            task.session.note(task, "arrive", f"arrives on {self.name} (phase {self.phase}, {self.arrived} of {self.arrivals})")
        if self.arrived > self.arrivals:
            raise error(ProtocolError, task, f"{self.name}: {self.arrived} arrivals in phase {self.phase} (by "
                                             f"{names(self.arrived_by)}), expected {self.arrivals}. Each worker of {self.by} "
                                             "arrives once a phase.", semaphore=self.name)
        self._update(task.session)

    # ---- the session's side
    def complete(self, nbytes, clock, at, name):
        """A copy has written `nbytes` (complete_tx)."""
        if clock is not None:
            self._release(clock, at)
        self.pending_bytes -= nbytes
        self._update(self.block.launch.session)

    def _release(self, clock, at):
        self.clock = clock.copy() if self.clock is None else join(self.clock, clock)
        self.proof.append(at)

    def _update(self, session):
        if self.arrived == self.arrivals and self.pending_bytes == 0:
            parity = self.phase & 1
            self.complete_clock[parity], self.clock = self.clock, None
            self.complete_proof[parity], self.proof = self.proof, []
            self.last_by, self.arrived_by = self.arrived_by, []
            self.arrived, self.phase = 0, self.phase + 1
            waiters, self.waiters = self.waiters, []
            for task in waiters:
                if session.time is not None:
                    task.cost = session.time.hw.arrive_s
                session.wake(task)

    @staticmethod
    def _meant(last, parity):
        """The phase that a wait on `parity` means for a role that knows `last` complete: the next one, or that one again."""
        if (last + 1) & 1 == parity:
            return last + 1
        return last if last >= -1 else last + 2

    def _observer(self, task):
        """Workers that take tasks in turns follow a semaphore's phases together."""
        return task.name if task.role.together else task.role.name

    def _check_lap(self, task, meant, parity):
        """ProtocolError unless the phase before the one that `task` means is complete in every schedule before it waits.

        Until then the parity is that of two phases earlier, and the wait would not wait.
        """
        before = meant - 1
        proof = self.complete_proof[before & 1] if before in (self.phase - 1, self.phase - 2) else ()
        if not proof or not all(covers(task.clock, *at) for at in proof):
            raise error(ProtocolError, task, f"{self.name}: waits for phase {meant} by its parity ({parity}), and nothing orders the end "
                                             f"of phase {before} before that: come early, it takes phase {meant - 2} for it and goes on. "
                                             f"Let whoever waits for phase {before} hand over to this role first: a turn, or a "
                                             "semaphore.", semaphore=self.name)

    def _known(self, task):
        """The latest phase whose completion is ordered before `task` (its arrivals and bytes are in the task's past)."""
        for phase in (self.phase - 1, self.phase - 2):
            proof = self.complete_proof[phase & 1]
            if proof and all(covers(task.clock, *at) for at in proof):
                return phase
        return -2

    def begun(self, task):
        return self.arrived > 0 or self.pending_bytes != 0

    def awaits(self, task):
        """The tasks that have not arrived in the open phase."""
        return [t for b in self._blocks() for t in b.tasks if t.role.name == self.by and t.name not in self.arrived_by]

    def progress(self, task):
        """(expected, seen) arrivals of the open phase."""
        return self.arrivals, self.arrived

    def describe(self, task):
        meant, parity = task.wanted
        text = f"{self.name} phase {meant} (parity {parity}; {self.arrived} of {self.arrivals} arrivals by {self.by}"
        if self.arrived_by:
            text += f": {names(self.arrived_by)}"
        if self.pending_bytes > 0:
            text += f"; {self.pending_bytes} bytes announced and not copied"
        elif self.pending_bytes < 0:
            text += f"; {-self.pending_bytes} bytes copied and not announced"
        if not self.phase:
            return text + "; nobody completed a phase)"
        return text + f"; phase {self.phase - 1} was completed by {names(self.last_by)})"

    def check_left(self, clock):
        """ProtocolError unless every arrival of another block is ordered before ``clock``, that of the end of this block."""
        for component, (epoch, task, place) in self.strangers.items():
            if not covers(clock, component, epoch):
                raise ProtocolError(f"{self.name} of {self.block.label}: {task.name} may arrive, at {where(place)}, when the block has "
                                    "left. Nobody waits for that arrival, and the block's shared memory is gone then. Let the role that "
                                    "fills what is given back wait at the end until all of it has been.", semaphore=self.name,
                                    task=task.name, rank=self.block.launch.rank, block=self.block.number)

    def check_end(self):
        """ProtocolError if something is left when the block has ended."""
        if self.arrived or self.pending_bytes:
            raise ProtocolError(f"{self.name} of {self.block.label}: the block ended with {self.arrived} of {self.arrivals} "
                                f"arrivals (by {names(self.arrived_by)}) and {self.pending_bytes} bytes outstanding in phase "
                                f"{self.phase}. Every phase that is begun must complete. Make the roles take the same number of "
                                "steps.",
                                semaphore=self.name, rank=self.block.launch.rank, block=self.block.number)
