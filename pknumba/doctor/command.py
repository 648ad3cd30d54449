"""The command line ``python -m pknumba doctor``."""

import json

from .examination import examine
from ..runtime import survey
from ..screen import colours

_ABOUT = """Says what this machine has, what pknumba would do on it, what does not work and what to do about it. Under mpirun all
ranks together make one report. Status 0: ready; 1: something does not work; 2: it could not be run."""


def add(commands):
    """Add the sub-command ``doctor``."""
    parser = commands.add_parser("doctor", help="look at this machine: GPUs, links, MPI, versions", description=_ABOUT)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto",
                        help="what is wanted here: gpu makes it a problem that there is none (default: auto)")
    parser.set_defaults(run=run)


def run(options):
    """Run the sub-command; returns the exit status, under MPI the same on every rank."""
    report = examine(options.executor)
    if survey.launcher()[0] == 0:
        print(json.dumps(report.data(), indent=1) if options.json else report.text(colours()), flush=True)
    return 0 if report else 1
