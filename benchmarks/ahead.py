"""Kernels compiled many at a time, in processes of their own, before they are needed: each takes seconds, and ranks wait for each other.

    python benchmarks/ahead.py < jobs        JSON: [[class in pknumba.kernels, {field: value of its configuration}], ...]
"""

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import fields

from pknumba.tuning.ahead import alone

#: Seconds that ranks wait at most; what is missing then is compiled when it is called.
LIMIT = 75


def job(name, cfg):
    """What ``start`` takes, of a class in ``pknumba.kernels`` and its configuration. What a launch passes as numbers does not matter."""
    return name, {f.name: 1 if f.name in cfg.runtime else getattr(cfg, f.name) for f in fields(cfg)}


def start(jobs):
    """Begin, on the first rank of all; returns a function that waits, on that rank."""
    jobs = list({json.dumps(made): made for made in jobs}.values())
    if not jobs or os.environ.get("OMPI_COMM_WORLD_RANK", "0") != "0":
        return lambda: None
    made = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, env=alone(), text=True)
    with suppress(OSError):                                             # it has died: kernels are compiled when they are called, then
        made.stdin.write(json.dumps(jobs))
        made.stdin.close()

    def wait():
        try:
            made.wait(LIMIT)
        except subprocess.TimeoutExpired:
            made.terminate()
            made.wait()
    return wait


def build(made):
    """Compile one; None, or why not."""
    from pknumba import kernels
    from pknumba.templates.call import compiled
    name, known = made
    try:
        kernel = getattr(kernels, name)
        cfg = kernel.config(**known)
        compiled(kernel.for_config(cfg), cfg)
    except Exception as problem:                                        # whoever launches it is told
        return f"{name} {known}: {type(problem).__name__}: {problem}"[:400]


def main():
    """Compile what standard input says. Returns the exit status."""
    jobs = json.load(sys.stdin)
    with multiprocessing.Pool(min(len(jobs), os.cpu_count())) as pool:
        told = [text for text in pool.imap_unordered(build, jobs, 1) if text]
    print(*told, sep="\n", file=sys.stderr, end="\n" if told else "")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
