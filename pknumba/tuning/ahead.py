"""Kernels compiled before they are measured, many at a time: each takes seconds, and a tuner's budget is seconds."""

import json
import os
import subprocess
import sys
import time

from .moves import OPERATORS

__all__ = ["compile_ahead"]

#: Processes at most, and configurations from which on starting one pays.
_WORKERS, _PAYS = 12, 2


def kernel_of(op, cfg):
    """The class that plays a configuration of the public function ``op``."""
    from .. import kernels
    return getattr(kernels, "".join(word.capitalize() for word in op.split("_"))).for_config(cfg)


def compile_ahead(op, configs, seconds):
    """Compile these configurations of an operator in processes of their own, so that this one finds them on disk; at most that long.

    What cannot be compiled is not told here: who launches it is. Does nothing for few, or on one core.
    """
    workers = min(_WORKERS, os.cpu_count() or 1, len(configs))
    if len(configs) < _PAYS or workers < 2 or seconds <= 0:
        return
    end, running = time.monotonic() + seconds, []
    for i in range(workers):
        made = subprocess.Popen([sys.executable, "-m", __name__, op], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, text=True, env=alone())
        made.stdin.write(json.dumps([vars(c) for c in configs[i::workers]]))
        made.stdin.close()
        running.append(made)
    for made in running:
        try:
            made.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            made.kill()
            made.wait()


def alone():
    """The environment without what says that this process is a rank."""
    told = ("OMPI_", "PMI", "PRTE_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    return {k: v for k, v in os.environ.items() if not k.startswith(told)}


def main(op, text):
    """Compile what is asked for, one after the other."""
    from ..errors import PknumbaError
    from ..templates.call import compiled
    for fields in json.loads(text):
        cfg = OPERATORS[op].config(**fields)
        try:
            compiled(kernel_of(op, cfg), cfg)
        except PknumbaError:
            continue


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
