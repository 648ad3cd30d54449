"""Mutants of kernels, as the package makes them."""

import inspect

from pknumba.checking.mutation import SYNCHRONISING, load, mutants, survivors

__all__ = ["SYNCHRONISING", "load", "mutants", "survivors", "drives", "of_pace"]


def of_pace(kernel):
    """The one mutant of ``kernel.pace`` that nobody can notice: what is sent in parts must have been read. That it has been written keeps
    the link's queue short, nothing else."""
    lines, first = inspect.getsourcelines(kernel.pace)
    return {f"line {first + next(i for i, line in enumerate(lines) if 'store_async_wait(0)' in line)}: waits for the read only"}


def drives(kernel):
    """For ``survivors``: the function that gives the kernel the drivers of a mutant module."""
    def make(module):
        class Driven(kernel):
            @classmethod
            def driver(cls, role):
                drive = super().driver(role)
                return getattr(module, drive.__name__, drive)
        Driven.__name__, Driven.__module__ = kernel.__name__, kernel.__module__
        return Driven
    return make
