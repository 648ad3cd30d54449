"""Worlds that span nodes: who is on which node, what carries data between them, and the world that knows both."""

from .choice import engines
from .layout import Layout
from .world import Across, NodeArray, SpanningWorld

__all__ = ["engines", "Layout", "Across", "NodeArray", "SpanningWorld"]
