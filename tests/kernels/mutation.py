"""Mutants of kernels, as the package makes them."""

from pknumba.checking.mutation import SYNCHRONISING, load, mutants, survivors

__all__ = ["SYNCHRONISING", "load", "mutants", "survivors", "drives"]


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
