"""What kernels recorded of their roles: a ring of intervals in device memory, if the world was made with PKNUMBA_TIMELINE=1.

Every warp of every block has a lane of its own of the newest ``ENTRIES`` intervals, so that recording needs no atomics. The clock is the
GPU's own nanosecond clock: two H200s of one machine were 2.4 ms apart.
"""

import os
import struct
import weakref
from collections import namedtuple

from . import device_array, driver

__all__ = ["Interval", "Intervals", "wanted", "decode", "ENTRIES", "WARPS", "BLOCKS", "CODES"]

#: Intervals of a warp, warps of a block, blocks (``lowering.recording`` has the same).
ENTRIES, WARPS, BLOCKS = 512, 16, 264
_BYTES = 16
#: What an interval may be, and the roles, by number.
CODES = {1: "task", 2: "waits for a semaphore", 3: "waits for a counter"}
_ROLES = ("", "loader", "consumer", "storer", "communicator")

#: ``begin``, ``end``: nanoseconds; ``block``, ``warp``, ``sm``: where; ``role``; ``code``: a key of CODES; ``number``: 16 bits of the
#: task's id, of the semaphore's place or of the counter's number.
Interval = namedtuple("Interval", "begin end block warp sm role code number")


def wanted():
    """Whether kernels of worlds made now record (PKNUMBA_TIMELINE=1)."""
    return os.environ.get("PKNUMBA_TIMELINE", "0") not in ("", "0")


def decode(data):
    """[Interval] of a ring's bytes, in the order of their beginnings."""
    found = []
    for i, (begin, length, word) in enumerate(struct.iter_unpack("<QII", data)):
        if begin:
            lane = i // ENTRIES
            found.append(Interval(begin, begin + length, lane // WARPS, lane % WARPS, word >> 8 & 255, _ROLES[word >> 4 & 15], word & 15,
                                  word >> 16))
    return sorted(found)


class Intervals:
    """The ring of one rank.

    Attributes: ``pointer``, its device address.
    """

    size = ENTRIES * WARPS * BLOCKS * _BYTES

    def __init__(self, device):
        self.device = device
        with driver.using(device):
            self.pointer = driver.alloc(self.size, "a timeline's intervals")
        self._finalize = weakref.finalize(self, device_array._free, self.pointer, device)
        self._finalize.atexit = False
        self.clear()

    def clear(self):
        """Forget everything. No kernel may run."""
        with driver.using(self.device):
            driver.memset(self.pointer, 0, self.size)
            driver.synchronize()

    def read(self):
        """[Interval] of what ran so far; waits for the device."""
        with driver.using(self.device):
            driver.synchronize()
            return decode(bytes(driver.copy_out(self.pointer, self.size)))
