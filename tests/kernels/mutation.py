"""Mutants of kernels, as the package makes them."""

from pknumba.checking.mutation import BODIES, SYNCHRONISING, load, mutants, survivors

__all__ = ["BODIES", "SYNCHRONISING", "load", "mutants", "survivors"]
