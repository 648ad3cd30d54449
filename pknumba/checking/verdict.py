"""What a check found, for programs (attributes) and for people (text and pictures)."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from . import pictures, timeline
from .source import signallers
from ..errors import DeadlockError, RaceError
from ..interpreter.history import Event
from ..interpreter.waits import WaitGraph


@dataclass
class Failure:
    """The first thing that was found.

    Attributes:
        run: Run (world, seed, policy, completion). problem: its Toy. kernel: its class. line: the
            command that repeats it. error: the exception of that run.
        shrunk: Shrunk, whose ``attempt`` failed in the same way with few switches; None if it was not shrunk.
        found: Attempt of the run itself; None if a second run did not fail.
    """

    run: object
    problem: object
    kernel: type
    line: str
    error: Exception
    shrunk: object = None
    found: object = None

    @property
    def attempt(self):
        """The run to look at: the shrunk one if there is one."""
        return self.shrunk.attempt if self.shrunk else self.found

    @property
    def graph(self):
        """WaitGraph of a deadlock; None for anything else."""
        error = self.attempt.error if self.attempt else self.error
        return WaitGraph(error.waiting, signallers(self.kernel)) if isinstance(error, DeadlockError) and hasattr(error, "waiting") else None

    @property
    def lanes(self):
        """Names of the tasks that matter: both sides of a race, the circle of a deadlock, whoever raised."""
        error = self.attempt.error if self.attempt else self.error
        graph = self.graph
        if graph is not None:
            return list(dict.fromkeys([*graph.circle, *list(graph.blame)[:4], *(n for v in list(graph.blame.values())[:4] for n in v[:2])]))
        data = getattr(error, "data", {})
        names = [data.get("task"), data.get("writer"), (data.get("other") or {}).get("task")]
        return [n for n in dict.fromkeys(names) if n]

    def text(self):
        """What happened, the shrunk schedule, and the line that reproduces it."""
        attempt = self.attempt
        error = attempt.error if attempt else self.error
        message = str(error).partition("\nreproduce: ")[0]
        graph = self.graph
        lines = [f"{type(error).__name__}: " + (message if graph is None else message.splitlines()[0])]
        if graph is not None:
            lines += [line for line in message.splitlines() if "cannot start" in line]       # blocks without room
            lines.append(graph.text())
        if isinstance(error, RaceError) and attempt:
            lines.append(self._order())
        if attempt:
            lines.append(self._schedule())
            lines.append(timeline.text(attempt.events, self.lanes) if attempt.events else timeline.order(attempt.schedule))
        lines.append(f"problem: {self.problem.text}" if self.problem.text else "")
        lines.append(f"reproduce: {self.line}")
        return "\n".join(x for x in lines if x)

    def _schedule(self):
        if not self.shrunk:
            return f"schedule ({self.found.switches} switches between roles), the end of it:"
        switches, tries = self.attempt.switches, self.shrunk.tries
        if self.shrunk.straight:
            return ("schedule: fails without any choice, in the run that switches only where a role must wait; here with "
                    f"{switches} switches (found with {self.found.switches}), the end of it:")
        return f"schedule shrunk from {self.found.switches} to {switches} switches in {tries} tries, the end of it:"

    def _order(self):
        """What each side of a race did between the other's access and its own."""
        data = self.attempt.error.data
        mine, other = data["task"], data["other"]
        words = {mine: [], other["task"]: []}
        for e in self.attempt.events:
            if e.lane in words and e.kind in ("wait", "arrive", "signal"):
                words[e.lane].append(f"{'waited: ' if e.kind == 'wait' else ''}{e.text}")
        return "\n".join(f"  last of {name}: {'; '.join(said[-2:]) or 'it ordered nothing yet'}" for name, said in words.items())

    def _unended(self):
        """Waits that a deadlock left, as events."""
        end = sum(steps for _, steps in self.attempt.schedule)
        return [Event(r["since"] or end, end, r["task"], r["rank"], r.get("block"), r.get("role"), "wait", f"waits for {r['why']}", None)
                for r in getattr(self.attempt.error, "waiting", ())]

    def save(self, folder):
        """Write timeline.svg, timeline.json (Chrome trace), schedule.json and, for a deadlock, waits.svg. Returns the paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = {"report.txt": self.text() + "\n"}
        if self.attempt:
            title = f"{type(self.attempt.error).__name__}: {str(self.attempt.error).splitlines()[0].split('. ')[0]}"
            events = self.attempt.events + self._unended()
            files["timeline.svg"] = timeline.svg(events, title, self.lanes)
            files["timeline.json"] = timeline.chrome(events)
            files["schedule.json"] = json.dumps({"run": self.run._asdict(), "schedule": self.attempt.schedule})
        if self.graph is not None:
            files["waits.svg"] = pictures.waits(self.graph, "deadlock")
        for name, content in files.items():
            (folder / name).write_text(content)
        return [folder / name for name in files]


@dataclass
class Verdict:
    """Outcome of a check. True if nothing was found.

    Attributes:
        kernel: name. plan: Plan. total, done: runs. switches, operations, accesses: work of all runs. seconds: how long it took.
        failure: Failure, or None.
    """

    kernel: str
    command: str
    plan: object
    total: int
    done: int = 0
    switches: int = 0
    operations: int = 0
    accesses: int = 0
    seconds: float = 0.0
    failure: Failure = None
    worlds: list = field(default_factory=list)

    def __bool__(self):
        return self.failure is None

    def add(self, run, sessions):
        """Count a run."""
        self.done += 1
        for session in sessions:
            self.switches += session.switches
            self.operations += session.operations
            self.accesses += session.accesses
        if run.world not in self.worlds:
            self.worlds.append(run.world)

    def line(self, run, calls):
        """The command that repeats one run, with so many calls."""
        extra = "".join(f" --set {k}={v}" for k, v in self.plan.changes.items() if k != "size")
        if "size" in self.plan.changes:
            extra += " --size " + " ".join(map(str, self.plan.changes["size"]))
        for name, value, usual in (("calls", calls, 3), ("skew", self.plan.skew, 40), ("card-sms", self.plan.card_sms, None)):
            extra += f" --{name} {value}" if value != usual else ""
        return (f"python -m pknumba check {self.command} --world {run.world} --seed {run.seed} --policy {run.policy} --completion "
                f"{run.completion}{extra}")

    def raise_failure(self):
        """Raise the error that was found, if any."""
        if self.failure:
            raise self.failure.error

    def __str__(self):
        head = (f"{self.kernel}: {self.done} of {self.total} runs, worlds "
                f"{', '.join(map(str, self.worlds)) or 'none'}, "
                f"{self.switches} switches, {self.operations} asynchronous operations, {self.accesses} checked accesses, "
                f"{self.seconds:.1f} s")
        if self.failure is None:
            short = "" if self.done == self.total else " (stopped early: not all runs were made)"
            return f"{head}\nnothing found: no race, no deadlock, no misuse, exact results{short}"
        return f"{head}\n{self.failure.text()}"
