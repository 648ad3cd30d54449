"""In what order chunks take their steps, so that kernels inside a node and data between nodes are under way at once."""

from collections import deque

__all__ = ["pipelined"]


def pipelined(chunks):
    """Run generators that yield where they would wait for other nodes.

    A new chunk begins before older ones are asked to wait: its kernels run while their data travel. The order is the same on every
    rank, whatever comes first, because the kernels of a node's ranks wait for each other.
    """
    running = deque()
    for chunk in chunks:
        begun = _goes_on(chunk)
        running = deque(older for older in running if _goes_on(older))
        if begun:
            running.append(chunk)
    while running:
        running = deque(older for older in running if _goes_on(older))


def _goes_on(chunk):
    """One step; whether there is another."""
    try:
        next(chunk)
    except StopIteration:
        return False
    return True
