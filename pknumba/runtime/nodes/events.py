"""CUDA events: how a stream waits for another one, and the host asks how far it is."""

import ctypes
import weakref

from .. import driver, libcuda
from ...errors import PknumbaError

__all__ = ["Event"]


class Event:
    """An event of a device. No time is taken."""

    def __init__(self, device):
        handle = ctypes.c_void_p()
        with driver.using(device):
            libcuda.call("cuEventCreate", ctypes.byref(handle), 2)  # 2: no timing
        self.handle = handle.value
        weakref.finalize(self, _destroy, handle.value, device).atexit = False

    def record(self, stream):
        """Stand for what is in `stream` now; returns self."""
        libcuda.call("cuEventRecord", self.handle, stream)
        return self

    def holds(self, stream):
        """Later work of `stream` waits for it."""
        libcuda.call("cuStreamWaitEvent", stream, self.handle, 0)

    def done(self):
        """Whether all that it stands for has run."""
        code = libcuda.function("cuEventQuery")(self.handle)
        if code != 600:
            libcuda.check(code, "cuEventQuery")
        return code == 0


def _destroy(handle, device):
    try:
        with driver.using(device):
            libcuda.call("cuEventDestroy_v2", handle)
    except PknumbaError:
        pass  # a lost context has lost its events
