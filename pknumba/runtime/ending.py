"""How a world ends without the other ranks: when an error leaves it, when it is broken, or dropped and never closed."""

import sys
import traceback
import warnings

from . import later
from .local import LocalLink

__all__ = ["abandon", "dropped", "end_job"]


def abandon(here, blocks, alone=False):
    """Give back what needs no other rank; the bytes that stay allocated."""
    left = sum(block.abandon(alone) for block in list(blocks.values()) + here.allocations())
    blocks.clear()
    here.close()
    if hasattr(here.link, "abandon"):
        here.link.abandon()
    return left


def dropped(here, blocks):
    """A world was dropped, not closed: no collectives now, and nothing at all while Python shuts down."""
    if sys.is_finalizing():
        return
    if isinstance(here.link, LocalLink):
        here.link.dropped(lambda: later.soon(abandon, here, blocks, True))
    elif left := abandon(here, blocks):
        warnings.warn(f"World: dropped, not closed; {left} bytes of symmetric memory stay allocated, because peers may use them. "
                      "Close it on every rank.", ResourceWarning, stacklevel=2)


def end_job(world, error):
    """An error leaves main of a rank that is a process: say so, let the others know, and end all of them after a moment."""
    sys.stdout.flush()
    print(f"rank {world.rank} of {world.size}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    world._break(f"{type(error).__name__}: {error}", error)
    world._link.abort(1)
