"""What the notebooks use: tiny kernels, pictures, checks of exercises, and a score of counted bytes and predicted time."""

from .drawing import Drawing, Picture
from .exercise import Mark, check, measure, run
from .meter import Meter, Score
from .tiny import COLUMNS, ROWS, Tiny, TinyConfig

__all__ = ["Drawing", "Picture", "check", "run", "measure", "Mark", "Score", "Meter", "Tiny", "TinyConfig", "ROWS", "COLUMNS"]
