"""The checker: runs kernels on the interpreter in many schedules, shrinks what fails, mutates and reads kernels.

``check`` runs a kernel, ``mutate`` deletes and bends its synchronising lines, ``lint`` reads it. ``python -m pknumba check`` is
the same on the command line.
"""

from .checker import Plan, Run, check
from .lint import Finding, lint
from .mutation import Mutation, mutate
from .play import WrongResult, play
from .toys import TOYS, Toy, product, product_config, toy_of
from .verdict import Failure, Verdict
from ..interpreter.waits import WaitGraph

__all__ = ["check", "Plan", "Run", "Verdict", "Failure", "WaitGraph", "lint", "Finding", "mutate", "Mutation", "play", "WrongResult", "Toy",
           "TOYS", "toy_of", "product", "product_config"]
