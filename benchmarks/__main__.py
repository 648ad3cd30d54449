"""Run benchmarks by name within a time budget, then make tables and plots from their JSON lines.

    python -m benchmarks                        every case that this machine can run, in eight minutes
    python -m benchmarks gemm micro --seconds 120
    python -m benchmarks --report               tables and plots of the lines that there are; needs no GPU
    python -m benchmarks --list

Each case is a program of this folder; it gets its share of the time that is left and adds its lines as it makes them, so nothing
measured is lost when the time is up.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Seconds that a case may go on after its share, within the whole: it starts nothing new by then.
GRACE = 30


@dataclass(frozen=True)
class Case:
    """A program to run.

    Attributes:
        weight: its part of the time, against the others'. command: program and its arguments. ranks: that share one GPU under MPS; 0:
            a program of one process.
    """

    weight: float
    command: tuple
    ranks: int = 0

    def line(self, results, seconds):
        """The whole command."""
        program, *arguments = self.command
        out = ["--out", str(results / f"{Path(program).stem}.jsonl")] if results else []
        run = [sys.executable, str(HERE / program), *arguments, "--budget", f"{seconds:.0f}", *out]
        return [str(HERE.parent / "scripts" / "mps"), "run", "-n", str(self.ranks), "--", *run] if self.ranks else run


CASES = {
    "roofs": Case(1, ("roofs.py",)),
    "gemm": Case(3, ("gemm.py", "--layouts", "nt", "nn", "--dtypes", "bfloat16")),
    "float16": Case(2, ("gemm.py", "--dtypes", "float16")),
    "thirty": Case(7, ("gemm.py", "--list", "thirty", "--dtypes", "bfloat16")),
    "launch": Case(2, ("launch.py",)),
    "recording": Case(2, ("recording.py",)),
    "attention": Case(3, ("attention.py",)),
    "attention_ranks": Case(3, ("attention_ranks.py",), ranks=4),
    "moe": Case(3, ("moe.py",)),
    "moe_ranks": Case(2, ("moe_ranks.py",), ranks=4),
    "all_reduce": Case(3, ("gemm_all_reduce.py",), ranks=8),
    "collectives": Case(3, ("collectives.py",), ranks=8),
    "micro": Case(3, ("micro.py",), ranks=2),
    "host_time": Case(1, ("host_time.py",), ranks=8),
}


def bar(done, width=24):
    """A progress bar for a share from 0 to 1."""
    full = round(min(max(done, 0.0), 1.0) * width)
    return f"[{'#' * full}{'-' * (width - full)}]"


def sweep(names, seconds, results=None, run=None, say=print):
    """Run cases one after the other.

    Args:
        names: of CASES. seconds: for all of them. results: folder of the lines; None: each program's own.
        run: function (command, timeout) -> exit status; None: a process. say: prints a line.

    Returns: {name: exit status, or None for one that there was no time for}.
    """
    begun, run, statuses = time.monotonic(), run or _process, dict.fromkeys(names)
    total = sum(CASES[n].weight for n in names)
    for number, name in enumerate(names):
        left = seconds - (time.monotonic() - begun)
        weight = sum(CASES[n].weight for n in names[number:])
        share = left * CASES[name].weight / weight
        done = 1 - weight / total
        if share < 1:
            say(f"{bar(done)} {name}: left out for lack of time")
            continue
        say(f"{bar(done)} {number + 1} of {len(names)}: {name}, {share:.0f} of {left:.0f} s")
        statuses[name] = run(CASES[name].line(results, share), min(share + GRACE, left))
        if statuses[name]:
            say(f"{bar(done)} {name}: FAILED with status {statuses[name]}")
    say(f"{bar(1)} {time.monotonic() - begun:.0f} s, {sum(s == 0 for s in statuses.values())} of {len(names)} cases")
    return statuses


def _process(command, timeout):
    try:
        return subprocess.run(command, cwd=HERE.parent, timeout=timeout).returncode
    except subprocess.TimeoutExpired:
        return 124


def report(results):
    """Print the table of a folder of lines and draw its plots into it. Returns the exit status."""
    sys.path.insert(0, str(HERE))
    import table
    folder = results or table.RESULTS
    if not any(folder.glob("*.jsonl")):
        print(f"benchmarks: no lines in {folder}. Tables are made of them. Run a case first.", file=sys.stderr)
        return 2
    print(table.sections(folder))
    try:
        import plots
    except ImportError:
        print("benchmarks: no plots, since matplotlib is not installed. pip install 'pknumba[plots]'.", file=sys.stderr)
        return 0
    return plots.main(["--results", str(folder), "--to", str(folder if results else plots.PICTURES)])


def main(arguments=None):
    """Run a command line; returns the exit status: 0 all is well, 1 a case failed, 2 the request cannot be carried out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=480, help="for everything (480)")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="add lines there instead of benchmarks/results")
    parser.add_argument("--report", action="store_true", help="only make tables and plots")
    parser.add_argument("--list", action="store_true", help="name the cases")
    options = parser.parse_args(arguments)
    unknown = [n for n in options.names if n not in CASES]
    if unknown:
        print(f"benchmarks: no case {unknown[0]!r}. There are {', '.join(CASES)}. Name one of these.", file=sys.stderr)
        return 2
    if options.list:
        for name, case in CASES.items():
            print(f"{name:<12} {' '.join(case.command)}{f', {case.ranks} ranks' if case.ranks else ''}")
        return 0
    if options.report:
        return report(options.results)
    if options.seconds < len(options.names or CASES):
        print(f"benchmarks: {options.seconds:g} seconds for {len(options.names or CASES)} cases. Each takes a second at least. Give more "
              "time or name fewer.", file=sys.stderr)
        return 2
    statuses = sweep(options.names or list(CASES), options.seconds, options.results)
    made = report(options.results)
    return 1 if any(statuses.values()) else made


if __name__ == "__main__":
    sys.exit(main())
