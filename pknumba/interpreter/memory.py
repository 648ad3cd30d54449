"""What a session knows about every allocation of global memory, for as long as it lives."""

import weakref

import numpy as np

from .shadow import Shadow


class Memory:
    """What a session knows about one allocation: its shadow, and its counters by address."""

    def __init__(self, name):
        self.shadow, self.counters = Shadow(name), {}


def root(array):
    """The object that owns an array's memory."""
    while isinstance(array, (np.ndarray, memoryview)):
        owner = array.base if isinstance(array, np.ndarray) else array.obj
        if owner is None:
            break
        array = owner
    return array


class Memories:
    """The Memory of every allocation, by its base object, forgotten when that is freed."""

    def __init__(self):
        self._known = {}

    def __iter__(self):
        return iter([memory for memory, _ in self._known.values()])

    def __call__(self, array, name):
        base = root(array)
        key = id(base)
        found = self._known.get(key)
        if found is None:
            try:
                keep = weakref.ref(base, lambda _: self._known.pop(key, None))
            except TypeError:
                keep = base
            found = self._known[key] = Memory(name), keep
        return found[0]
