"""What calls of a kernel of one rank keep between them: memory in which its blocks meet. Every stream has its own, since calls on two
streams may run at once."""

from .call import Matrix, Workspace, prepare

__all__ = ["OwnCounters", "Sums", "OnStreams", "launches", "CAPTURED"]

#: In place of a stream: what captured calls have in common. Where a graph will run, its capture does not say.
CAPTURED = "captured"


class OwnCounters:
    """``n`` counters of this rank alone, which stand for something else on a device (``primitives.shares``). Not collective."""

    def __init__(self, world, n):
        import numpy as np
        self.n, self.pointer, self.peers_table, own = n, 0, 0, np.zeros(n, np.uint32)
        self.arrays = [own if r == world.rank else None for r in range(world.size)]


class Sums:
    """Float32 memory (rows, cols) of this rank for one stream, on a GPU the same for all calls that write the same words of it
    (``primitives.shares``), which ``words`` names. ``matrix``: as a kernel sees it."""

    def __init__(self, world, stream, rows, cols, words):
        if world.executor == "interpreter":
            import numpy as np
            own = np.full((rows, cols), np.nan, np.float32)
            self.matrix = Matrix(arrays=[own if r == world.rank else None for r in range(world.size)])
            return
        from ..runtime import DeviceArray, driver
        key = "sums", stream, rows, cols, words
        if key not in world.cache:
            world.cache[key] = DeviceArray.empty(rows * cols, "float32", world.device)
            with driver.using(world.device):
                stream = driver.stream_create()
                driver.memset(world.cache[key].pointer, 0, 4 * rows * cols, stream)
                driver.stream_synchronize(stream)
                driver.stream_destroy(stream)
        self._memory = world.cache[key]
        self.matrix = Matrix(self._memory.pointer, rows, cols, 4 * cols, "float32")


class OnStreams:
    """A launch for each stream that a call comes on, and one for all that are captured.

    Args:
        make: function (stream, or CAPTURED) -> launch with what that keeps. stream: that the call is on now.
    """

    def __init__(self, make, stream):
        self._make, self._known = make, {}
        self._on(stream), self._on(CAPTURED)        # the second now, since nothing can be allocated later in a capture

    def _on(self, stream):
        if stream not in self._known:
            self._known[stream] = self._make(stream)
        return self._known[stream]

    def fire(self, stream=0):
        """Launch on the stream with this pointer."""
        (self._known.get(stream) or self._on(place_of(stream))).fire(stream)


def place_of(stream):
    """CAPTURED for a stream whose calls go into a graph, else the stream."""
    from ..runtime.streams import capturing
    return CAPTURED if capturing(stream) else stream


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
    if world.executor != "gpu":
        return make(stream)
    return OnStreams(make, place_of(stream)) if follows else make(place_of(stream))
