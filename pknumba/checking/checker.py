"""check(): a kernel over worlds, seeds, policies and ways of completing, with what was found told on one screen."""

import sys
import time
from collections import namedtuple
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import timeline
from .play import play
from .shrinking import Attempt, shrink
from .source import name_of
from .toys import toy_of
from .verdict import Failure, Verdict
from ..errors import ConfigError
from ..screen import Bar

POLICIES, COMPLETIONS = ("fifo", "random", "pct", "starve"), ("eager", "random", "late")
#: One run: which ranks, which choices.
Run = namedtuple("Run", "world seed policy completion")


@dataclass(frozen=True)
class Plan:
    """Which runs a check makes. ``runs`` lists them.

    Attributes:
        worlds: numbers of ranks; None: 1 to 4, or 1 for a kernel that shares no memory. seeds: how many, or which.
        policies, completions: every policy meets every completion in as many seeds as there are pairs.
        calls: calls in a row, without a barrier. skew: steps that another rank each time comes late.
        changes: fields of the configuration to fix (``size=(m, n, k)`` too, for products).
        card_sms: SMs of one card that all ranks share (``interpreter.Session``); None: every rank has its own.
    """

    worlds: tuple = None
    seeds: object = 12
    policies: tuple = POLICIES
    completions: tuple = COMPLETIONS
    calls: int = 3
    skew: int = 40
    changes: dict = field(default_factory=dict)
    card_sms: int = None

    def runs(self, kernel):
        """The runs, a world's after another's. Raises ConfigError for a name that does not exist."""
        for name, known in (("policies", POLICIES), ("completions", COMPLETIONS)):
            for given in getattr(self, name):
                if given not in known:
                    raise ConfigError(f"check: {name} = {given!r}. It must be among {', '.join(known)}.")
        alone = hasattr(kernel, "communicates") and not kernel.communicates() and not kernel.symmetric
        worlds = self.worlds or ((1,) if alone else (1, 2, 3, 4))
        seeds = range(self.seeds) if isinstance(self.seeds, int) else self.seeds
        pairs = [(p, self.completions[(i + j) % len(self.completions)]) for j in range(len(self.completions))
                 for i, p in enumerate(self.policies)]
        return [Run(world, seed, *pairs[seed % len(pairs)]) for world in worlds for seed in seeds]


def check(kernel, *, toy=None, shrink_s=10.0, limit_s=None, progress=None, max_switches=500_000, name=None, **plan):
    """Run a kernel on the interpreter in many schedules and look for races, deadlocks, misuse and wrong results.

    Args:
        kernel: class of LCS, LCSC or another template, with a toy problem (see ``pknumba.checking.Toy``); or a program: a function
            main(world) that every rank runs, which calls operators and raises if a result is wrong.
        toy: function (world, rng, **changes) -> Toy to use instead of the kernel's.
        shrink_s: how long to make a failing schedule smaller, in seconds; 0 leaves it.
        limit_s: stop after so many seconds, failure or not; None: after the last run.
        progress: function of a line of text, called every two seconds; None: lines on standard error.
        max_switches: a run that takes more ends with HangError.
        name: what to call the kernel in the line that reproduces a failure.
        plan: fields of ``Plan``: worlds, seeds, policies, completions, calls, skew, changes, card_sms.

    Returns: Verdict, true if nothing was found. It stops at the first finding; ``verdict.failure`` has it.

    Raises: ConfigError or ContractError for a kernel that cannot be run at all.
    """
    plan = Plan(**plan)
    make, runs, start = toy or toy_of(kernel), plan.runs(kernel), time.monotonic()
    verdict = Verdict(kernel.__name__, name or name_of(kernel), plan, len(runs))
    tick = _Ticker(progress, kernel.__name__, len(runs), start)
    for run in runs:
        if limit_s is not None and time.monotonic() - start > limit_s:
            break
        options = dict(seed=run.seed, policy=run.policy, completion=run.completion, max_switches=max_switches)
        problem = make(run.world, np.random.default_rng(run.seed), **plan.changes)
        again = _player(kernel, problem, run, plan.calls, plan, verdict)
        sessions = []
        try:
            again(sessions.append, **options)
        except ConfigError:
            raise                                       # says nothing of the kernel
        except Exception as error:                      # noqa: B902 - whatever a kernel does wrong is a finding
            verdict.failure = _examine(kernel, problem, run, plan, options, error, shrink_s, verdict)
        verdict.add(run, sessions)
        if verdict.failure:
            break
        tick(verdict.done)
    tick.close()
    verdict.seconds = time.monotonic() - start
    return verdict


def save_first(kernel, folder, toy=None, **plan):
    """Play the first run of a plan with tracing and write timeline.svg and timeline.json to a folder. Returns the paths."""
    plan = Plan(**plan)
    run, folder = plan.runs(kernel)[0], Path(folder)
    problem = (toy or toy_of(kernel))(run.world, np.random.default_rng(run.seed), **plan.changes)
    session = play(kernel, problem, run.world, plan.calls, run.seed, plan.skew, policy=run.policy, completion=run.completion, trace=True,
                   card_sms=plan.card_sms)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{kernel.__name__}, world {run.world}, seed {run.seed}, {run.policy}, {run.completion}: {problem.text}"
    files = {"timeline.svg": timeline.svg(session.events, title, last=400), "timeline.json": timeline.chrome(session.events)}
    for name, content in files.items():
        (folder / name).write_text(content)
    return [folder / name for name in files]


def _player(kernel, problem, run, calls, plan, verdict):
    """function (keep, **options of Session) that plays one run."""
    def again(keep, **options):
        def named(session):
            session.reproduce = verdict.line(run, calls)
            keep(session)
        play(kernel, problem, run.world, calls, skew=plan.skew, keep=named, card_sms=plan.card_sms, **options)
    return again


def _examine(kernel, problem, run, plan, options, error, shrink_s, verdict):
    """The Failure of a run, played again with tracing and shrunk: first to as few calls as fail, then in its schedule."""
    for calls in range(1, plan.calls + 1) if shrink_s > 0 and problem.main is None else (plan.calls,):
        again, line = _player(kernel, problem, run, calls, plan, verdict), verdict.line(run, calls)
        found = Attempt(again, **options)
        if type(found.error) is type(error):
            break
    else:                                               # depends on more than the seed: nothing to shrink
        return Failure(run, problem, kernel, line, error, None)
    return Failure(run, problem, kernel, line, error, shrink(again, found, shrink_s, **options) if shrink_s > 0 else None, found)


class _Ticker:
    """A bar on a terminal, else a line every two seconds."""

    def __init__(self, progress, name, total, start):
        self.say, self.name, self.total, self.start = progress or _stderr, name, total, start
        self.last, self.bar = start, Bar(total, name) if progress is None and sys.stderr.isatty() else None

    def close(self):
        """No more."""
        if self.bar is not None:
            self.bar.__exit__()

    def __call__(self, done):
        if self.bar is not None:
            self.bar.step("nothing found")
            return
        now = time.monotonic()
        if now - self.last >= 2:
            self.last = now
            self.say(f"{self.name}: {done} of {self.total} runs, nothing found, {now - self.start:.0f} s")


def _stderr(line):
    print(line, file=sys.stderr, flush=True)
