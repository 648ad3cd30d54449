"""Mixture of experts, second half: experts' results are multiplied once more, go back to their tokens' ranks, and are summed there."""

from ..config import MoeConfig
from ..primitives import carry, div, i32, least, look, mod, post, store_async_wait, wait_until, weigh
from ..templates import Experts, Tokens, combine
from .grouped_gemm import GroupedGemm


class MoeCombine(Experts, GroupedGemm):
    """Compute SMs multiply tiles of rows; communicators send each row that is complete to its token's rank, where it has a place for
    each slot. Rows of this rank's own tokens stay where they are. The call ends when everything has landed everywhere."""

    config, alone = MoeConfig, GroupedGemm
    tensors, symmetric, counters = ("A", "B", "C", "ends", "source", "Z"), ("Z",), ("done", "left")
    kinds = {**GroupedGemm.kinds, "source": "int32"}

    @staticmethod
    def bands(cfg, g):
        """Tile columns of each row of each band that are in C."""
        return g.done

    @staticmethod
    def share(cfg, g):
        """A row is complete with all its tile columns."""
        return g.cols

    @staticmethod
    def errands(cfg, g, total):
        """One for each row."""
        return total

    @staticmethod
    def storer(cfg, g, s, task):
        GroupedGemm.storer(cfg, g, s, task)
        band = div(task.first, cfg.tile_m)
        middle = least(task.end, (band + 1) * cfg.tile_m)
        store_async_wait(0)                     # written to C, not merely read from shared memory
        post(g.done, band, g.rank, middle - task.first)
        if task.end > middle:                   # a tile may lie in two bands
            post(g.done, band + 1, g.rank, task.end - middle)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: a row to where its token is
        name = look(g.source, task.id)
        if div(name, g.slots) != g.rank:
            wait_until(g.done, div(task.id, cfg.tile_m), i32(g.epoch * cfg.tile_m * g.cols))
            carry(g.Z, mod(name, g.slots), g.C, task.id, div(name, g.slots))


class MoeSum(Tokens):
    """What every warp of a device does once all rows are there: the weighted sums of tokens."""

    tensors = ("out", "C", "Z", "place", "weights")
    kinds = {"place": "int32", "weights": "float32"}
    numbers = {**Tokens.numbers, "capacity": 1}

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: a token of this rank
        weigh(g.out, task.id, g.C, g.Z, g.weights, g.place, g.top_k, g.capacity)


def moe_combine(world, Y, routes, B, weights, *, out=None, config=None, stream=None):
    """out[t] = sum over slots j of weights[t, j] * (Y @ B of their experts)[row of slot (t, j)]; collective.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        Y: (capacity, K) bfloat16 or float16, rows contiguous: the result of ``moe_dispatch_gemm``, or anything made of it row by row.
        routes: the Routes that came with it; no other dispatch of that shape may have been called since.
        B: (this rank's experts, K, N) of Y's dtype, contiguous; or the transpose of contiguous (.., N, K).
        weights: (T, k) float32, contiguous, on the device: of each slot of this rank's tokens.
        out: (T, N) of Y's dtype, rows contiguous; made with Y's library if None.
        config: MoeConfig; chosen by shape if None. stream: as in ``gemm``.

    Returns: out (T, N). Each row of a product is rounded once to the dtype, a token's sum is made in float32 in the order of its slots
    and rounded once: the same bits each time. Slots that were dropped count as zero. A world of several ranks keeps symmetric memory of
    T * k * N elements for this shape.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, ContractError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return combine(MoeCombine, MoeSum, world, Y, routes, B, weights, out, config, stream)
