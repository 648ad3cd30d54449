"""What calls of a kernel of one rank keep between them: counters, and memory in which its blocks meet. Every stream has its own, since
calls on two streams may run at once."""

import struct

from .call import Matrix, Workspace, device_table, prepare

__all__ = ["OwnCounters", "Sums", "OnStreams", "launches", "CAPTURED"]

#: In place of a stream: what captured calls have in common. Where a graph will run, its capture does not say.
CAPTURED = "captured"


class OwnCounters:
    """``n`` 32-bit counters of this rank alone, zero at first. They only grow. Not collective."""

    def __init__(self, world, n):
        import numpy as np
        self.n, zeros = n, np.zeros(n, np.uint32)
        if world.executor == "interpreter":
            self.arrays = [zeros if r == world.rank else None for r in range(world.size)]
            return
        from ..runtime import DeviceArray
        self._memory = DeviceArray.of(zeros, world.device)
        self.pointer = self._memory.pointer
        self.peers_table = device_table(world, struct.pack(f"<{world.size}Q", *[self.pointer] * world.size))


class Sums:
    """Float32 memory (rows, cols) of this rank for one stream, empty (``primitives.shares``) between calls; on a GPU the same for all
    calls of about the size. ``matrix``: as a kernel sees it."""

    def __init__(self, world, stream, rows, cols):
        if world.executor == "interpreter":
            import numpy as np
            own = np.full((rows, cols), np.nan, np.float32)
            self.matrix = Matrix(arrays=[own if r == world.rank else None for r in range(world.size)])
            return
        from ..runtime import DeviceArray, driver
        key = "sums", stream, (rows * cols - 1).bit_length()
        if key not in world.cache:
            world.cache[key] = DeviceArray.empty(1 << key[2], "float32", world.device)
            with driver.using(world.device):
                driver.memset(world.cache[key].pointer, 0xff, 4 << key[2], world.stream)
                driver.stream_synchronize(world.stream)
        self._memory = world.cache[key]
        self.matrix = Matrix(self._memory.pointer, rows, cols, 4 * cols, "float32")


class OnStreams:
    """A launch for each stream that a call comes on, and one for all that are captured.

    Args:
        make: function (stream, or CAPTURED) -> launch with what that keeps. stream: that the call is on now.
    """

    def __init__(self, make, stream):
        self._make, self._known, self._captured = make, {stream: make(stream)}, make(CAPTURED)

    def fire(self, stream=0):
        """Launch on the stream with this pointer."""
        launch = self._known.get(stream)
        if launch is None:
            from ..runtime.streams import capturing
            launch = self._captured if capturing(stream) else self._known.setdefault(stream, self._make(stream))
        launch.fire(stream)


def launches(kernel, world, cfg, matrices, numbers, shape, stream, follows):
    """The launch of a kernel whose calls keep something: on this stream, or, where the call ``follows`` its library's current stream, on
    whichever it comes on. Arguments as of ``prepare``, and the product's (m, n, k)."""
    def make(key):
        place = "workspace", kernel, cfg, shape, key
        if place not in world.cache:
            made = world.cache[place] = Workspace(kernel, world, cfg, numbers["tasks"] * cfg.parts)
            made.memory = kernel.form.keeps(world, key, cfg, numbers)
        kept = world.cache[place]
        return prepare(kernel, world, cfg, {**matrices, **{name: x.matrix for name, x in kept.memory.items()}}, numbers, kept)
    return OnStreams(make, stream) if follows and world.executor == "gpu" else make(stream)
