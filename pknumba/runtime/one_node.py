"""What a world on one node says of nodes."""

__all__ = ["OneNode"]


class OneNode:
    """The part of a World that ``nodes.SpanningWorld`` replaces.

    Attributes:
        spans: whether the ranks are on several nodes.
    """

    spans = False

    @property
    def node(self):
        """The World of the ranks of this node: those that can map each other's memory."""
        return self

    @property
    def across(self):
        """The ranks with this one's number on every node, and what carries data between them (``nodes.Across``)."""
        from .nodes import Across, Layout
        return Across(Layout([range(self.size)], ["local"]), self.rank, None)
