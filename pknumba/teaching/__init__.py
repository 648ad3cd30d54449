"""What the notebooks use: pictures, checks of exercises, and a score of counted bytes and predicted time."""

from .drawing import Drawing, Picture

__all__ = ["Drawing", "Picture"]
