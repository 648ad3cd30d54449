"""CUDA graphs: calls that are prepared once and replayed for the price of one launch."""

import ctypes
import weakref
from functools import partial

from . import driver, later, libcuda
from .streams import LEGACY, capturing
from ..errors import ConfigError

__all__ = ["Graph", "Bundle"]

#: CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile.
_THREAD_LOCAL = 1
#: Times that a stream has had a bundle's launches one by one before they are made a graph.
_OFTEN = 3


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
        with driver.using(self.device):
            self.stream = driver.stream_create()
            calls(self.stream)
            driver.stream_synchronize(self.stream)
            world.barrier()
            self._run = _captured(calls, self.stream)
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


class Bundle:
    """Several launches that follow each other: one by one at first, and together, as a graph, once a stream has had them often.

    A graph of several launches costs the host little more than one. It is made when it is likely to be needed again, since making it takes
    as long as many launches.

    Args:
        launches: function (stream) that makes them; nothing but what a graph can hold.
        device: number.

    Attributes: ``ready``: {stream: function () -> CUresult}, of the streams that launch them together.
    """

    def __init__(self, launches, device):
        self.ready, self._launches, self._device, self._times, self._run = {}, launches, device, {}, None

    def run(self, stream=LEGACY):
        """Make the launches on the stream with this pointer."""
        self._launches(stream)
        times = self._times[stream] = self._times.get(stream, 0) + 1
        if times >= _OFTEN and stream not in self.ready and not capturing(stream):
            self.ready[stream] = self._together(stream)

    def _together(self, stream):
        if self._run is None:
            with driver.using(self._device):
                aside = driver.stream_create()
                try:
                    self._run = _captured(self._launches, aside)
                finally:
                    driver.stream_destroy(aside)
            weakref.finalize(self, later.soon, _destroy, self._run, None, self._device).atexit = False
        launch = partial(libcuda.bare("cuGraphLaunch"), ctypes.c_void_p(self._run), ctypes.c_void_p(stream))
        return launch if stream == LEGACY else partial(self._unless_captured, launch, stream)

    def _unless_captured(self, launch, stream):
        """A graph is no part of another."""
        if capturing(stream):
            self._launches(stream)
            return 0
        return launch()

    def refused(self, launch, code):
        """Deal with what one of ``ready`` has returned that is not 0: once more with this device's context, or raise."""
        with driver.using(self._device):
            code = launch()
        libcuda.check(code, "cuGraphLaunch", "launches of one call")


def _captured(calls, stream):
    """What ``calls`` launches on the stream, as a graph that can be launched. It is not launched here."""
    graph, run = ctypes.c_void_p(), ctypes.c_void_p()
    libcuda.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
    try:
        calls(stream)
    finally:
        code = libcuda.function("cuStreamEndCapture")(stream, ctypes.byref(graph))
    libcuda.check(code, "cuStreamEndCapture", "what the calls do")
    libcuda.call("cuGraphInstantiateWithFlags", ctypes.byref(run), graph, 0)
    libcuda.call("cuGraphDestroy", graph)
    return run.value


def _event():
    event = ctypes.c_void_p()
    libcuda.call("cuEventCreate", ctypes.byref(event), 0)
    return event.value


def _destroy(run, stream, device):
    with driver.using(device):
        libcuda.call("cuGraphExecDestroy", run)
        if stream is not None:
            driver.stream_destroy(stream)
