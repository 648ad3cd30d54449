"""The host side: worlds of ranks, symmetric memory, arrays, streams, tensor maps, launches, and every driver call.

Importing it loads no driver, no MPI and no array library.
"""

from .arrays import ArrayInfo, describe, empty_like_library
from .device_array import DeviceArray
from .graphs import Graph
from .launch import Launch
from .streams import pointer_of
from .symmetric import SymmetricArray, SymmetricCounters
from .world import World

__all__ = ["World", "SymmetricArray", "SymmetricCounters", "DeviceArray", "Graph", "ArrayInfo", "describe", "empty_like_library", "Launch",
           "pointer_of"]
