"""Ahead of time: kernels compiled on a machine without a GPU, for machines without a compiler.

``python -m pknumba compile`` writes a bundle; a program takes kernels from it where PKNUMBA_BUNDLE names it, or after
``pknumba.use_bundle(path)``.
"""

from .plans import wanted
from ..lowering.bundle import use as use_bundle

__all__ = ["use_bundle", "wanted"]
