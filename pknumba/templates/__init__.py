"""Templates: who works when. They schedule a kernel's roles on both executors and launch it."""

from .base import Template
from .lcs import LCS
from .lcsc import LCSC
from .matrices import multiply

__all__ = ["Template", "LCS", "LCSC", "multiply"]
