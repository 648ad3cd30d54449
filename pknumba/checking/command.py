"""The command line ``python -m pknumba check KERNEL``."""

import argparse
import sys

from .checker import COMPLETIONS, POLICIES, check, save_first
from .lint import lint, told
from .mutation import mutate
from .source import load, name_of
from ..errors import PknumbaError

_ABOUT = """Runs a kernel on the interpreter (no GPU) in many schedules and looks for races, deadlocks, misuse and wrong results.
KERNEL is the name of an operator (gemm_all_reduce) or file.py:Class; a class of your own has a method toy(world, rng)."""


def add(commands):
    """Add the sub-command ``check``."""
    parser = commands.add_parser("check", help="look for races and deadlocks in a kernel", description=_ABOUT,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", metavar="KERNEL")
    runs = parser.add_argument_group("which runs")
    runs.add_argument("--world", type=_positive, nargs="+", help="numbers of ranks (default: 1 2 3 4)")
    runs.add_argument("--seeds", type=_positive, default=12, help="how many seeds for each world (default 12)")
    runs.add_argument("--seed", type=int, help="this seed only")
    runs.add_argument("--policy", choices=POLICIES, nargs="+", default=list(POLICIES), help="who goes next")
    runs.add_argument("--completion", choices=COMPLETIONS, nargs="+", default=list(COMPLETIONS), help="when copies take effect")
    runs.add_argument("--calls", type=_positive, default=3, help="calls in a row, without a barrier (default 3)")
    runs.add_argument("--skew", type=int, default=40, help="steps that another rank each time comes late (default 40)")
    runs.add_argument("--card-sms", type=_positive, metavar="N", help="all ranks share a card of so many SMs")
    runs.add_argument("--set", metavar="FIELD=VALUE", nargs="+", default=[], action="extend", type=_field,
                      help="fix fields of the configuration")
    runs.add_argument("--size", type=_positive, nargs=3, metavar=("M", "N", "K"), help="fix the shape of a product")
    runs.add_argument("--limit", type=float, metavar="SECONDS", help="stop after so long")
    parser.add_argument("--lint", action="store_true", help="read the kernel, run nothing")
    parser.add_argument("--mutate", action="store_true", help="delete or bend each synchronising line; list what nobody notices")
    out = parser.add_argument_group("what to tell")
    out.add_argument("--shrink", type=float, default=10.0, metavar="SECONDS", help="how long to shrink a failing schedule; 0: not at all")
    out.add_argument("--save", metavar="FOLDER", help="write timeline.svg, timeline.json (Chrome trace), waits.svg, schedule.json "
                     "there; if nothing is found, the timeline of the first run")
    parser.set_defaults(run=run)


def run(options):
    """Run the sub-command; returns the exit status."""
    try:
        kernel = load(options.kernel)
        return _check(kernel, options)
    except (PknumbaError, TypeError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _check(kernel, options):
    changes = dict(options.set)
    if options.size:
        changes["size"] = tuple(options.size)
    plan = dict(worlds=tuple(options.world) if options.world else None,
                seeds=options.seeds if options.seed is None else (options.seed,), policies=tuple(options.policy),
                completions=tuple(options.completion), calls=options.calls, skew=options.skew, changes=changes,
                card_sms=options.card_sms)
    if options.lint:
        found = lint(kernel)
        print(told(found, kernel.__name__))
        return 1 if found else 0
    if options.mutate:
        found = mutate(kernel, progress=lambda line: print(line if len(line) < 200 else line[:197] + "..."), **plan)
        print(found)
        return 0 if found else 1
    name = options.kernel if ":" in options.kernel else name_of(kernel)
    verdict = check(kernel, name=name, limit_s=options.limit, shrink_s=options.shrink, **plan)
    print(verdict)
    if options.save:
        paths = verdict.failure.save(options.save) if verdict.failure else save_first(kernel, options.save, **plan)
        print("written: " + ", ".join(map(str, paths)))
    return 0 if verdict else 1


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _field(text):
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text} is not FIELD=VALUE")
    known = {"true": True, "false": False}
    return name, known[value.lower()] if value.lower() in known else int(value) if value.lstrip("-").isdigit() else value
