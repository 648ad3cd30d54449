"""Bytes around memory that nobody may touch, and memory that looks unwritten: what debug builds (PKNUMBA_DEBUG=1) compare on the host."""

import os

from . import driver

__all__ = ["debug", "GUARD", "PATTERN", "UNWRITTEN", "lay", "changed"]

#: Bytes of a guard, each of them this; bytes of elements that nobody has written: a NaN in every float dtype.
GUARD, PATTERN, UNWRITTEN = 256, 0xA5, 0xFF


def debug():
    """Whether PKNUMBA_DEBUG asks for checks (as ``lowering.variant`` reads it)."""
    return os.environ.get("PKNUMBA_DEBUG", "0") not in ("", "0")


def lay(pointer):
    """Make GUARD bytes of device memory a guard."""
    driver.memset(pointer, PATTERN, GUARD)


def changed(pointer):
    """Offset of the first byte of a guard that is not as it was laid, or None."""
    found = driver.copy_out(pointer, GUARD)
    return next((i for i, byte in enumerate(found) if byte != PATTERN), None)
