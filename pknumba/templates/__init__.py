"""Templates: who works when. They schedule a kernel's roles on both executors and launch it."""

from .base import Template
from .forms import Scattered, Whole
from .lcs import LCS
from .lcsc import LCSC
from .matrices import multiply

__all__ = ["Template", "LCS", "LCSC", "Whole", "Scattered", "multiply"]
