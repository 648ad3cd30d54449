"""The vocabulary of kernels. Each primitive is a plain function (its body is the CPU meaning); beside it stands its PTX."""

from .index import div, i32, least, mod, ring, tile_coord
from .mma import accumulator, mma, mma_wait, store
from .multimem import all_reduce
from .semaphore import arrive, expect, wait
from .signal import barrier, keep_epoch, signal, signal_all, turn_first, turn_pass, turn_wait, wait_until
from .tma import (fence_async, load_async, store_add_async, store_async, store_async_read_wait, store_async_wait,
                  store_max_async, store_min_async)

__all__ = ["accumulator", "all_reduce", "arrive", "barrier", "div", "expect", "fence_async", "i32", "keep_epoch", "least", "load_async", "mma",
           "mma_wait", "mod", "ring", "signal", "signal_all", "store", "store_add_async", "store_async", "store_async_read_wait",
           "store_async_wait", "store_max_async", "store_min_async", "tile_coord", "turn_first", "turn_pass", "turn_wait", "wait", "wait_until"]
