"""Executor 1: kernels on the CPU, all ranks in one process, with races, deadlocks and misuse found.

Every role of every block of every rank is a greenlet. One scheduler, seeded, decides who goes next and when an
asynchronous copy or multiplication takes effect; vector clocks tell whether what the kernel's semaphores, counters and
waits order is enough. The same seed gives the same run, in any process.
"""

from .access import fence_async, read, write
from .accumulator import Accumulator
from .calls import globals_of, keep_epoch, number_of
from .counters import Counters
from .launch import Block, Launch
from .operations import transfer
from .registers import Registers, Rows, elementwise, values
from .scheduler import Session
from .semaphore import Semaphore, SemaphoreRing
from .spans import Span, Strided
from .task import current, rest
from .tensor import Tensor, Window
from .tiles import SharedTile, dtype_of
from .turns import sync, turn_pass, turn_wait
from .virtual import VirtualTime

__all__ = ["Session", "VirtualTime", "Launch", "Block", "SharedTile", "SemaphoreRing", "Semaphore", "Tensor", "Window", "Strided", "Span",
           "Counters", "Accumulator", "Registers", "Rows", "elementwise", "values", "current", "rest", "read", "write",
           "transfer", "fence_async", "turn_wait", "turn_pass", "sync", "keep_epoch", "globals_of",
           "number_of", "dtype_of"]
