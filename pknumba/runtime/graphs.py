"""CUDA graphs: calls that are prepared once and replayed for the price of one launch."""

import ctypes
import weakref

from . import driver, later, libcuda
from ..errors import ConfigError

__all__ = ["Graph"]

#: CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile.
_THREAD_LOCAL = 1


class Graph:
    """What ``calls`` launch, captured, to be replayed.

    Args:
        world: World of this rank, on GPUs.
        calls: function (stream) that calls operators with ``stream=stream``; it is run once as it is, so that everything is compiled
            and allocated, and once to be captured. Arrays must outlive the graph.

    Attributes: ``stream``, the pointer of the graph's own stream.

    Raises ConfigError on the interpreter; DriverError for what cannot be captured.
    """

    def __init__(self, world, calls):
        if world.executor != "gpu":
            raise ConfigError("Graph: the world is interpreted. CUDA graphs are for GPUs. Call the operators themselves.")
        self.device, self._events = world.device, ()
        graph, run = ctypes.c_void_p(), ctypes.c_void_p()
        with driver.using(self.device):
            self.stream = driver.stream_create()
            calls(self.stream)
            driver.stream_synchronize(self.stream)
            world.barrier()
            libcuda.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
            try:
                calls(self.stream)
            finally:
                code = libcuda.function("cuStreamEndCapture")(self.stream, ctypes.byref(graph))
            libcuda.check(code, "cuStreamEndCapture", "what the calls do")
            libcuda.call("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, 0)
            libcuda.call("cuGraphDestroy", graph)
        self._run = run.value
        self.close = weakref.finalize(self, later.soon, _destroy, self._run, self.stream, self.device)
        self.close.atexit = False

    def replay(self):
        """Launch everything on the graph's stream."""
        with driver.using(self.device):
            libcuda.call("cuGraphLaunch", self._run, self.stream)

    def seconds(self):
        """Replay, wait, and say how long the device took."""
        with driver.using(self.device):
            start, end = self._events = self._events or tuple(_event() for _ in range(2))
            libcuda.call("cuEventRecord", start, self.stream)
            libcuda.call("cuGraphLaunch", self._run, self.stream)
            libcuda.call("cuEventRecord", end, self.stream)
            driver.stream_synchronize(self.stream)
            taken = ctypes.c_float()
            libcuda.call("cuEventElapsedTime", ctypes.byref(taken), start, end)
        return taken.value * 1e-3


def _event():
    event = ctypes.c_void_p()
    libcuda.call("cuEventCreate", ctypes.byref(event), 0)
    return event.value


def _destroy(run, stream, device):
    with driver.using(device):
        libcuda.call("cuGraphExecDestroy", run)
        driver.stream_destroy(stream)
