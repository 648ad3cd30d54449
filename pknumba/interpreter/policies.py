"""Who goes next: the policies by which a session picks a task, or lets an asynchronous operation take a step.

All randomness comes from the session's one generator, so a seed gives one schedule. ``completion`` says when operations
take their steps: "eager" before any task, "late" only when no task can go on (the latest first), "random" in between.
"""

from collections import deque
from heapq import heappop, heappush

from ..errors import ConfigError

#: How often the random policies let an operation go before a task.
_OPERATION_FIRST = 0.3
#: pct: how many times a run demotes whoever leads, and within how many steps.
_CHANGES, _HORIZON = 3, 4000


class Fifo:
    """Tasks in the order in which they became ready."""

    def __init__(self, rng, completion):
        self.rng, self.random, self.completion = rng, rng.random, completion
        self.tasks, self.operations = deque(), []

    def add(self, task):
        self.tasks.append(task)

    def add_operation(self, operation):
        self.operations.append(operation)

    def next(self):
        """The task to resume or the operation to step, taken out of the queue; None if there is neither."""
        if self.operations and (not self.tasks or self._operation_first()):
            return self._operation()
        return self._task() if self.tasks else None

    def _operation_first(self):
        return self.completion == "eager" or self.completion == "random" and self.random() < _OPERATION_FIRST

    def _operation(self):
        operations = self.operations
        if self.completion == "random":
            i = int(self.random() * len(operations))
            operations[i], operations[-1] = operations[-1], operations[i]
        elif self.completion == "eager":
            return operations.pop(0)
        return operations.pop()

    def _task(self):
        return self.tasks.popleft()


class Random(Fifo):
    """Any ready task."""

    def __init__(self, rng, completion):
        super().__init__(rng, completion)
        self.tasks = []

    def _task(self):
        return _any(self.tasks, self.random)


class Starve(Fifo):
    """Any ready task, but one role, or the asynchronous operations, chosen by the seed, only when nothing else can go on."""

    def __init__(self, rng, completion):
        super().__init__(rng, completion)
        self.tasks, self.last, self.victim = [], [], None

    def add(self, task):
        self.tasks.append(task)

    def _choose(self):
        roles = list(dict.fromkeys(t.role.name for t in self.tasks if t.role))
        if roles:
            self.victim = self.rng.choice(roles + ["engine"])

    def next(self):
        if self.victim is None:
            self._choose()
        while True:
            if self.operations and self.victim != "engine" and (not self.tasks or self._operation_first()):
                return self._operation()
            if self.tasks:
                task = _any(self.tasks, self.random)
                if task.role and task.role.name == self.victim:
                    self.last.append(task)
                    continue
                return task
            if self.operations:
                return self._operation()
            return _any(self.last, self.random) if self.last else None


class Pct:
    """Random priorities over tasks and operations; a few times in a run, whoever leads is put last (PCT, Burckhardt 2010)."""

    def __init__(self, rng, completion):
        self.rng, self.completion = rng, completion
        self.ready, self.serial, self.steps, self.lowest, self.changes = [], 0, 0, 1.0, []

    def add(self, task):
        if task.priority is None:
            task.priority = self.rng.random()
        self._push(task)

    def add_operation(self, operation):
        if operation.priority is None:
            operation.priority = {"eager": -1.0, "late": 1e9}.get(self.completion) or self.rng.random()
        self._push(operation)

    def _push(self, item):
        self.serial += 1
        heappush(self.ready, (item.priority, self.serial, item))

    def next(self):
        if not self.ready:
            return None
        if self.steps % _HORIZON == 0:
            self.changes = sorted(self.steps + self.rng.randrange(_HORIZON) for _ in range(_CHANGES))
        self.steps += 1
        if self.changes and self.steps > self.changes[0]:
            self.changes.pop(0)
            item = heappop(self.ready)[2]
            self.lowest += 1.0
            item.priority = self.lowest
            self._push(item)
        return heappop(self.ready)[2]


def _any(items, random):
    i = int(random() * len(items))
    items[i], items[-1] = items[-1], items[i]
    return items.pop()


_POLICIES = {"fifo": Fifo, "random": Random, "pct": Pct, "starve": Starve}


class Replay:
    """A schedule again: who goes, and for how many steps.

    A schedule with parts cut out is one too. Where an entry names somebody who is not ready, those whom no entry names go on
    until it is, and if none of them can it is skipped. After the last entry there are as few switches as possible: whoever
    runs goes on until it must wait, operations take effect when no task can go on.

    Args:
        schedule: [(label of a task or operation, steps)], as ``Session.schedule()`` gives it.
    """

    def __init__(self, schedule):
        self.schedule, self.at, self.left = list(schedule), 0, None
        self.tasks, self.operations, self.last = {}, {}, None
        self.named = {label for label, _ in self.schedule}

    def add(self, task):
        self.tasks[task.label] = task

    def add_operation(self, operation):
        self.operations[operation.label] = operation

    def next(self):
        if not self.tasks and not self.operations:
            return None                 # hosts may have something to say first; no entry is given up for that
        while self.at < len(self.schedule):
            label, steps = self.schedule[self.at]
            self.left = steps if self.left is None else self.left
            if self.left and (label in self.tasks or label in self.operations):
                self.left -= 1
                return self._take(label)
            if self.left:
                free = self._straight(self.named)
                if free is not None:
                    return free
            self.at, self.left = self.at + 1, None
        return self._straight(())

    def _straight(self, without):
        """Whoever runs with as few switches as possible, except those `without`."""
        if self.last in self.tasks and self.last not in without:
            return self._take(self.last)
        for ready in (self.tasks, self.operations):
            label = next((x for x in ready if x not in without), None)
            if label is not None:
                return self._take(label)
        return None

    def _take(self, label):
        self.last = label
        return self.tasks.pop(label) if label in self.tasks else self.operations.pop(label)


def queue(policy, completion, rng, schedule=None):
    """The queue of a session. ConfigError for a name that does not exist."""
    if schedule is not None:
        return Replay(schedule)
    if policy not in _POLICIES:
        raise ConfigError(f"session: policy = {policy!r}. It must be one of {', '.join(_POLICIES)}.")
    if completion not in ("eager", "random", "late"):
        raise ConfigError(f"session: completion = {completion!r}. It must be eager, random or late.")
    return _POLICIES[policy](rng, completion)
