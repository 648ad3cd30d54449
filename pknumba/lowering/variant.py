"""How the environment changes the code of every kernel. Nothing set: the code that is measured."""

import os

__all__ = ["debug", "bounded", "timeline", "waits", "lines", "tag"]


def debug():
    """Whether kernels check every coordinate, index and peer before they use it (PKNUMBA_DEBUG=1)."""
    return os.environ.get("PKNUMBA_DEBUG", "0") not in ("", "0")


def bounded():
    """Whether waits give up past their limit. PKNUMBA_UNBOUNDED=1 leaves the bound out, to measure what it costs: such a kernel hangs."""
    return os.environ.get("PKNUMBA_UNBOUNDED", "0") in ("", "0")


def timeline():
    """Whether kernels record when each role did what (PKNUMBA_TIMELINE=1, set before the world is made)."""
    return os.environ.get("PKNUMBA_TIMELINE", "0") not in ("", "0")


def waits():
    """Whether kernels that record record waits for semaphores too (PKNUMBA_TIMELINE=waits): small calls become up to a tenth longer."""
    return os.environ.get("PKNUMBA_TIMELINE") == "waits"


def lines():
    """Whether cubins say which source line each instruction is of, for compute-sanitizer, ncu and cuda-gdb (PKNUMBA_LINES=1)."""
    return os.environ.get("PKNUMBA_LINES", "0") not in ("", "0")


def tag():
    """What tells the code of one environment from another's, empty for the usual: part of the names under which kernels are kept."""
    return " debug" * debug() + " unbounded" * (not bounded()) + " timeline" * timeline() + " waits" * waits() + " lines" * lines()
