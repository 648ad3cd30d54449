"""Order between the workers of one role in a block: turns (ping-pong) and the named barrier."""

from ..errors import ProtocolError
from .clocks import join
from .report import error, names
from .task import current


class _Turns:
    """How many turns have been passed, and by whom last."""

    def __init__(self):
        self.passed, self.clock, self.waiters, self.by = 0, None, [], None

    def awaits(self, task):
        """The workers that must pass a turn first."""
        return [t for t in task.block.tasks if t.role is task.role and t is not task]

    def describe(self, task):
        if not self.passed:
            return f"turn {task.wanted} (no turn was passed)"
        return f"turn {task.wanted} (turns 0 to {self.passed - 1} were passed, the last by {self.by})"


def turn_wait(turn):
    """Block until the workers of this role have passed turns 0 to `turn` - 1. PTX: bar.sync with two ids."""
    task, turn = current(), int(turn)
    begun = task.session.now
    task.pause()
    turns = task.block.turns.setdefault(task.role.name, _Turns())
    while turns.passed < turn:
        turns.waiters.append(task)
        task.park(turns, turn)
    task.turn = turn
    if task.session.races and turns.clock is not None:
        task.clock = join(task.clock, turns.clock)
    if begun is not None:
        task.session.note(task, "wait", f"turn {turn} is this worker's", begun)


def turn_pass(turn):
    """Let the worker of turn `turn` + 1 go on. ProtocolError if this worker has not waited for `turn`. PTX: bar.arrive."""
    task, turn = current(), int(turn)
    turns = task.block.turns.setdefault(task.role.name, _Turns())
    if task.turn != turn or turns.passed != turn:
        raise error(ProtocolError, task, f"turn_pass({turn}): this worker last waited for turn {task.turn} and {turns.passed} "
                                         "turns have been passed. Only whoever has the turn may pass it, once. Call "
                                         f"turn_wait({turn}) first.")
    turns.passed, turns.by, task.turn = turn + 1, task.name, None
    if task.session.races:
        turns.clock = task.clock.copy() if turns.clock is None else join(turns.clock, task.clock)
        task.tick()
    if task.session.events is not None:
        task.session.note(task, "arrive", f"passes turn {turn}")
    waiters, turns.waiters = turns.waiters, []
    for waiter in waiters:
        task.session.wake(waiter)
    task.pause()


class _Meeting:
    """The named barrier of a role."""

    def __init__(self, workers):
        self.workers, self.generation, self.present, self.clock, self.open_clock = workers, 0, [], None, None

    def awaits(self, task):
        """The workers that are not here."""
        return [t for t in self.workers if t not in self.present]

    def progress(self, task):
        """(expected, seen) workers."""
        return len(self.workers), len(self.present)

    def describe(self, task):
        missing = [t.name for t in self.workers if t not in self.present]
        return f"sync {task.wanted} ({len(self.present)} of {len(self.workers)} workers are here; missing: {names(missing)})"


def sync():
    """All workers of the current role in this block meet. PTX: bar.sync."""
    task = current()
    session = task.session
    begun = session.now
    task.pause()
    meeting = task.block.meetings.get(task.role.name)
    if meeting is None:
        meeting = task.block.meetings[task.role.name] = _Meeting([t for t in task.block.tasks if t.role.name == task.role.name])
    if session.races:
        meeting.open_clock = task.clock.copy() if meeting.open_clock is None else join(meeting.open_clock, task.clock)
        task.tick()
    meeting.present.append(task)
    generation = meeting.generation
    if len(meeting.present) == len(meeting.workers):
        meeting.clock, meeting.open_clock = meeting.open_clock, None
        present, meeting.present, meeting.generation = meeting.present, [], generation + 1
        for other in present:
            if other.waiting is meeting:
                session.wake(other)
    while meeting.generation == generation:
        task.park(meeting, generation)
    if session.races:
        task.clock = join(task.clock, meeting.clock)
    if begun is not None:
        session.note(task, "wait", f"all {len(meeting.workers)} workers are here", begun)
