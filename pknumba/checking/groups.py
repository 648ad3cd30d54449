"""Toy problems of kernels that multiply groups of rows: empty groups, groups that end within a tile, one that holds everything."""

import numpy as np

from ..config import GroupedGemmConfig
from .toys import SMALL, Toy

#: (rows of each group, rows of no group, n, k).
GROUPS = (((16, 32, 16), 0, 64, 32), ((1, 0, 17, 7), 2, 33, 17), ((0, 0, 40), 0, 20, 50), ((40, 0, 0), 0, 40, 15), 
          ((9, 24, 5, 16, 2), 3, 72, 40), ((3,), 4, 30, 1), ((8, 8, 8, 8, 8, 8), 0, 32, 33), ((0, 0), 5, 16, 16))


class ToyGrouped(GroupedGemmConfig):
    """GroupedGemmConfig with toy tiles: panels of 8 columns, one 32-byte swizzle span."""
    panel_n, c_swizzle, b_swizzle, a_swizzle = 8, 32, 32, 32


def grouped_product(kernel, cfg, groups, more, n, k, sms=4, turn=True):
    """The Toy of C = A @ B group by group. ``turn``: groups have other lengths in every call."""
    from ..templates.group_calls import numbers_of
    rows = sum(groups) + more

    def inputs(rng, rank):
        a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((rows, k), (len(groups), k, n)))
        ends = np.cumsum(rng.permutation(groups) if turn else groups).astype(np.int32)
        return {"A": a, "B": np.ascontiguousarray(b.transpose(0, 2, 1)) if cfg.b_transposed else b, "ends": ends}

    def expected(ranks):
        return [{"C": define(x["A"], x["B"].transpose(0, 2, 1) if cfg.b_transposed else x["B"], x["ends"])} for x in ranks]

    return Toy(cfg, inputs, expected, numbers_of(cfg, rows, len(groups), n, k, sms), sms,
               text=f"groups of {groups} rows, {n} x {k}, with consumers={cfg.consumers}, ping_pong={cfg.ping_pong}, stages={cfg.stages}")


def define(a, b, ends):
    """The product in float32; NaN in rows of no group."""
    c, start = np.full((len(a), b.shape[2]), np.nan, np.float32), 0
    for matrix, end in zip(b, ends):
        c[start:end] = a[start:end].astype(np.float32) @ matrix.astype(np.float32)
        start = max(start, end)
    return c


def grouped(kernel, world, rng, **changes):
    """A random problem and configuration."""
    consumers, ping_pong = ((2, False), (2, True), (1, False), (3, False))[rng.integers(4)]
    fields = dict(consumers=consumers, ping_pong=bool(ping_pong), b_transposed=bool(rng.integers(2)), stages=int(rng.integers(2, 5)),
                  tile_m=24 if consumers == 3 else 16, c_stages=int(rng.integers(1, 5)), group_m=int(rng.integers(1, 4)))
    cfg = ToyGrouped(**SMALL).replace(**{**fields, **changes})
    groups, more, n, k = GROUPS[rng.integers(len(GROUPS))]
    return grouped_product(kernel, cfg, groups, more, n, k, sms=int(rng.integers(2, 5)))


#: Class name -> its toy.
GROUPED = {"GroupedGemm": grouped}
