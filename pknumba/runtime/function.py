"""A kernel loaded on one device: its attributes, its occupancy, and launchers made from it."""

import ctypes

from . import driver
from .launch import Launch
from .libcuda import call

__all__ = ["Function"]

_byref = ctypes.byref


class Function:
    """A kernel on one device.

    Attributes: ``handle``, ``symbol``, ``device``, ``shared_bytes`` (dynamic shared memory it may use), ``registers`` and
    ``local_bytes`` (spills and arrays) per thread.
    """

    def __init__(self, module, handle, symbol, device, shared_bytes):
        self.module, self.handle, self.symbol, self.device, self.shared_bytes = module, handle, symbol, device, shared_bytes
        self.registers, self.local_bytes = self._attribute(4), self._attribute(3)

    def _attribute(self, number):
        value = ctypes.c_int()
        call("cuFuncGetAttribute", _byref(value), number, self.handle, about=self.symbol)
        return value.value

    def blocks_per_sm(self, threads, shared_bytes=None):
        """How many blocks of `threads` threads one multiprocessor holds at once."""
        value = ctypes.c_int()
        with driver.using(self.device):
            call("cuOccupancyMaxActiveBlocksPerMultiprocessor", _byref(value), self.handle, threads,
                 self.shared_bytes if shared_bytes is None else shared_bytes, about=self.symbol)
        return value.value

    def clusters(self, threads, shared_bytes, size):
        """How many clusters of `size` blocks the device holds at once."""
        return self.launcher(size, threads, (), shared_bytes=shared_bytes, cluster=size).max_clusters()

    def launcher(self, grid, block, params, **options):
        """A prebuilt :class:`pknumba.runtime.launch.Launch` of this kernel."""
        return Launch(self, grid, block, options.pop("shared_bytes", self.shared_bytes), params, **options)

    def unload(self):
        """Unload the module; the kernel must not be running. A second call does nothing."""
        if self.module:
            with driver.using(self.device):
                call("cuModuleUnload", self.module)
            self.module = None

    def __repr__(self):
        return f"Function({self.symbol}, device {self.device}, {self.registers} registers)"
