"""What a world gives back without the other ranks: when it is broken, or dropped and never closed."""

import sys
import warnings

from .local import LocalLink

__all__ = ["abandon", "dropped"]


def abandon(here, blocks, alone=False):
    """Give back what needs no other rank; the bytes that stay allocated."""
    left = sum(block.abandon(alone) for block in list(blocks.values()) + here.allocations())
    blocks.clear()
    here.close()
    return left


def dropped(here, blocks):
    """A world was dropped, not closed: no collectives now, and nothing at all while Python shuts down."""
    if sys.is_finalizing():
        return
    if isinstance(here.link, LocalLink):
        here.link.dropped(lambda: abandon(here, blocks, True))
    elif left := abandon(here, blocks):
        warnings.warn(f"World: dropped, not closed; {left} bytes of symmetric memory stay allocated, because peers may use them. "
                      "Close it on every rank.", ResourceWarning, stacklevel=2)
