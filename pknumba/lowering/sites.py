"""Source lines of a kernel's waits and checks, as small numbers that its code carries: what a HangError names."""

import os
import sys

__all__ = ["SITES", "number", "MOST"]

#: "gemm.py:62" by number, from 1 on; filled while a kernel is lowered, kept in its record. 0: a line that nobody knows.
SITES = []
#: The largest number that a record's word has room for.
MOST = 0xFFFF


def number():
    """The number of the line that numba is lowering: the innermost call of a primitive in a role, or in what a role calls."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        loc = getattr(owner, "loc", None)
        if hasattr(owner, "func_ir") and isinstance(getattr(loc, "line", None), int):
            text = f"{os.path.basename(loc.filename)}:{loc.line}"
            if text not in SITES:
                SITES.append(text)
            return min(SITES.index(text) + 1, MOST)
        frame = frame.f_back
    return 0
