"""Launching a kernel in about a microsecond: everything that cuLaunchKernelEx wants is built once.

Arguments live in one buffer, as the bytes the kernel's parameters have; the driver copies them at each launch, so that
:meth:`Launch.update` between two launches changes only the second.
"""

import ctypes
from functools import partial

from . import driver, libcuda
from ..errors import ConfigError

__all__ = ["Launch", "pack", "COOPERATIVE", "CLUSTER", "PROGRAMMATIC"]

#: Ids of CUlaunchAttribute.
COOPERATIVE, CLUSTER, PROGRAMMATIC = 2, 4, 6
#: Bytes of parameters that a kernel may have on sm_70 and newer.
PARAMETER_LIMIT = 32764
#: Invalid context and invalid handle: what a launch returns while another device's context is current.
_OTHER_CONTEXT = (201, 400)


def pack(params):
    """Lay out kernel arguments in one buffer.

    Args:
        params: bytes objects, or (bytes, alignment) pairs. Without an alignment it is 128 from 64 bytes on (tensor maps and the
            blobs that hold them), else 16.

    Returns:
        (buffer, address of each argument). The buffer must outlive the addresses.
    """
    places, at = [], 0
    for item in params:
        data, alignment = item if isinstance(item, tuple) else (item, 128 if len(item) >= 64 else 16)
        if alignment & (alignment - 1) or not 0 < alignment <= 128:
            raise ConfigError(f"launch: an argument's alignment is {alignment}. It must be a power of two up to 128.")
        at = -(-at // alignment) * alignment
        places.append((at, bytes(data)))
        at += len(data)
    if sum(len(data) for _, data in places) > PARAMETER_LIMIT:
        raise ConfigError(f"launch: {at} bytes of arguments. A kernel takes {PARAMETER_LIMIT}. Put large tables in device "
                          "memory.")
    buffer = ctypes.create_string_buffer(at + 128)
    base = -(-ctypes.addressof(buffer) // 128) * 128
    for offset, data in places:
        ctypes.memmove(base + offset, data, len(data))
    return buffer, [base + offset for offset, _ in places]


class Launch:
    """One kernel with its grid and arguments, ready to be fired on any stream, from any thread.

    Args:
        function: :class:`pknumba.runtime.function.Function`.
        grid: blocks (an int, or up to three).  block: threads (likewise).
        shared_bytes: dynamic shared memory of a block.
        params: see :func:`pack`.
        cooperative: refuse the launch unless all blocks are resident at once.
        pdl: programmatic dependent launch: the kernel may start before the one ahead of it in the stream has ended.
        cluster: blocks of a thread block cluster along x; the grid counts blocks, and must be a multiple of it.

    Attributes: ``ready``: {stream: function () -> CUresult}, the launch alone where it has been prepared for a stream.

    Raises ConfigError for a shape that no launch can have.
    """

    def __init__(self, function, grid, block, shared_bytes, params, cooperative=False, pdl=False, cluster=1):
        self.function, self.grid, self.block, self.shared_bytes = function, _three(grid), _three(block), shared_bytes
        self._check(cluster)
        self._sizes = [len(p[0]) if isinstance(p, tuple) else len(p) for p in params]
        self._buffer, self._places = pack(params)
        self._pointers = (ctypes.c_void_p * max(len(self._places), 1))(*self._places)
        chosen = [(COOPERATIVE, (1,))] * bool(cooperative)
        chosen += [(CLUSTER, (cluster, 1, 1))] * (cluster > 1) + [(PROGRAMMATIC, (1,))] * bool(pdl)
        self._count, self._attributes = len(chosen), (libcuda.LaunchAttribute * max(len(chosen), 1))()
        for attribute, (number, values) in zip(self._attributes, chosen):
            attribute.id = number
            attribute.value[:len(values)] = values
        self.ready, self._configs = {}, {}

    def _check(self, cluster):
        name, limit = self.function.symbol, self.function.shared_bytes
        if self.shared_bytes > limit:
            raise ConfigError(f"{name}: launched with {self.shared_bytes} B of shared memory, loaded for {limit}. Load it with "
                              f"shared_bytes={self.shared_bytes}.")
        threads = self.block[0] * self.block[1] * self.block[2]
        if not 0 < threads <= 1024 or min(self.grid) < 1:
            raise ConfigError(f"{name}: grid {self.grid}, block {self.block}. A grid has at least one block, a block 1 to 1024 "
                              "threads.")
        if cluster < 1 or self.grid[0] % cluster:
            raise ConfigError(f"{name}: a grid of {self.grid[0]} blocks in clusters of {cluster}. The grid is a multiple of the "
                              "cluster.")

    def fire(self, stream=0):
        """Launch on the stream with this pointer. Allocates only at a stream's first launch; may be captured in a graph."""
        call = self.ready.get(stream) or self._prepare(stream)
        code = call()
        if code:
            self.refused(call, code)

    def _prepare(self, stream):
        # A config of its own for each stream: two threads that fire on two streams share nothing that is written.
        config = libcuda.LaunchConfig(self.grid, self.block, self.shared_bytes, stream or None,
                                      ctypes.addressof(self._attributes), self._count)
        self._configs[stream] = config
        launch = libcuda.bare("cuLaunchKernelEx")
        call = partial(launch, ctypes.c_void_p(ctypes.addressof(config)), ctypes.c_void_p(self.function.handle),
                       ctypes.c_void_p(ctypes.addressof(self._pointers)), None)
        self.ready[stream] = call
        return call

    def refused(self, call, code):
        """Deal with what one of ``ready`` has returned that is not 0: once more on this device, if another is current, or raise."""
        if code in _OTHER_CONTEXT and driver.current_device() != self.function.device:
            with driver.using(self.function.device):
                code = call()
        libcuda.check(code, "cuLaunchKernelEx", f"{self.function.symbol} (grid {self.grid}, block {self.block}, "
                                                f"{self.shared_bytes} B of shared memory)")

    def update(self, index, data):
        """Replace argument number `index` by bytes of the same length, for the launches to come."""
        if len(data) != self._sizes[index]:
            raise ConfigError(f"{self.function.symbol}: argument {index} has {self._sizes[index]} bytes, {len(data)} given. An "
                              "update keeps the size.")
        ctypes.memmove(self._places[index], data, len(data))

    def max_clusters(self):
        """How many clusters of this launch are resident at once (cuOccupancyMaxActiveClusters)."""
        value = ctypes.c_int()
        self.ready.get(0) or self._prepare(0)
        with driver.using(self.function.device):
            libcuda.call("cuOccupancyMaxActiveClusters", ctypes.byref(value), self.function.handle,
                         ctypes.addressof(self._configs[0]), about=self.function.symbol)
        return value.value


def _three(size):
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes + (1,) * (3 - len(sizes))
