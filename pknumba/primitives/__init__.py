"""The vocabulary of kernels. Each primitive is a plain function (its body is the CPU meaning); beside it stands its PTX."""

from .activation import activate
from .boxes import copy_box, copy_boxes, entry, reduce_box
from .carrying import carry, post, spread, weigh
from .clusters import load_multicast
from .columns import col_max, col_sum
from .direct import store_panel
from .elements import cast, exp2, fill, fill_rows, log2, mask, maximum, minimum, row_max, row_sum
from .index import div, i32, least, mod, most, ring, tile_coord
from .meetings import announce, await_all, await_blocks, check_in, tick, times
from .mma import accumulator, as_operand, mma, mma_wait
from .multimem import all_reduce, broadcast, reduce, take
from .routing import add_up, deal, drop, put, tally
from .parcels import reduce_boxes, send_box, take_boxes
from .rows import normalise, over_warps, squares
from .ragged import load_ragged_async, look, store_ragged_async
from .semaphore import arrive, expect, wait
from .signal import barrier, keep_epoch, signal, signal_all, wait_until
from .stamps import record, stamp
from .shares import reduce_shares, shares_phase, store_shares
from .softmax import as_float, climb, rescale, row_numbers, row_shares, row_total
from .sync import follow, sync, turn_first, turn_pass, turn_wait
from .tile import add_panel, load, load_rows, store, store_rows
from .tma import (fence_async, load_async, prefetch, store_add_async, store_async, store_async_read_wait, store_async_wait,
                  store_max_async, store_min_async)

__all__ = ["accumulator", "activate", "add_up", "all_reduce", "announce", "arrive", "as_float", "as_operand", "await_all", "barrier",
           "broadcast", "carry", "cast", "climb", "col_max", "col_sum", "copy_box", "deal", "div", "drop", "entry", "exp2", "expect",
           "fence_async", "fill", "fill_rows", "i32", "keep_epoch", "least", "load", "load_async",
           "load_multicast", "load_ragged_async", "load_rows", "log2", "look", "mask", "maximum", "minimum", "mma", "mma_wait", "mod",
           "most", "normalise", "over_warps", "post", "put", "record", "reduce", "reduce_box", "reduce_boxes",
           "reduce_shares", "rescale", "ring", "row_max", "row_numbers", "row_shares", "row_sum", "row_total", "send_box",
           "signal", "signal_all", "squares", "stamp", "store", "store_add_async", "store_async", "store_async_read_wait",
           "store_async_wait", "store_max_async", "store_min_async", "store_ragged_async", "store_rows", "store_shares", "sync", "take",
           "take_boxes", "tally", "tick", "tile_coord", "times", "turn_first", "turn_pass", "turn_wait", "wait", "wait_until", "weigh"]
__all__ += ["add_panel", "await_blocks", "check_in", "copy_boxes", "follow", "prefetch", "shares_phase", "spread", "store_panel"]
