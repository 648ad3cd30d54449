"""Toy problems of kernels that multiply groups of rows: empty groups, groups that end within a tile, one that holds everything."""

import numpy as np

from .. import interpreter as cpu
from ..config import CommConfig, GroupedGemmConfig, MoeConfig
from ..templates import combine, dispatch
from .play import WrongResult
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


#: (tokens of a rank, slots of each, experts, columns of X, of the first product, of the second).
LAYERS = ((20, 2, 5, 40, 48, 24), (7, 1, 1, 9, 17, 8), (33, 3, 4, 24, 16, 40), (4, 4, 13, 8, 8, 8))
_CALLS, _SKEW = 3, 40


def experts(kernel, world, rng, **changes):
    """A few layers of experts in a row, new numbers in the same arrays, no barrier between: the kernel is one of the two products."""
    import ml_dtypes
    fields = dict(tile_m=64, tile_n=16, stages=int(rng.integers(2, 4)), c_stages=int(rng.integers(1, 3)), consumers=1, group_m=2,
                  comm_sms=1, piece_m=int((4, 8)[rng.integers(2)]))
    cfg = MoeConfig().replace(**{**fields, **changes})
    tokens, top_k, count, h, f, n = LAYERS[rng.integers(len(LAYERS))]

    def draw(*shape):
        return rng.integers(-1, 2, shape).astype(ml_dtypes.bfloat16)
    data = [[(draw(tokens, h), rng.integers(-1, count + 1, (tokens, top_k)).astype(np.int32),
              rng.integers(0, 3, (tokens, top_k)).astype(np.float32)) for _ in range(world)] for _ in range(_CALLS)]
    w1, w2 = draw(count, h, f), draw(count, f, n)
    return Toy(main=lambda w: _layers(w, kernel, cfg, data, w1, w2, count), sms=4,
               text=f"{tokens} tokens with {top_k} of {count} experts, {h} x {f} x {n}, stages={cfg.stages}, piece_m={cfg.piece_m}")


def _layers(world, kernel, cfg, data, w1, w2, count):
    from ..kernels.moe_combine import MoeCombine, MoeSum
    from ..kernels.moe_dispatch_gemm import MoeDispatchGemm, Route
    names = [c.__name__ for c in kernel.__mro__]                 # a mutant derives from what its own module has under that name
    first, second = (kernel if base.__name__ in names else base for base in (MoeDispatchGemm, MoeCombine))
    mine = [x.copy() for x in data[0][world.rank]]
    own = [np.array_split(w, world.size)[world.rank] for w in (w1, w2)]
    for number, inputs in enumerate(data):
        cpu.rest(_SKEW if number % world.size == world.rank else 0)
        for array, values in zip(mine, inputs[world.rank]):
            array[...] = values
        route = Route, CommConfig(dtype="int32")
        Y, routes = dispatch(route, first, world, mine[0], mine[1], own[0], "relu", None, count, None, None, cfg, None)
        out = combine(second, MoeSum, world, Y, routes, own[1], mine[2], None, cfg, None)
        if not np.array_equal(out, define_layer(*inputs[world.rank], w1, w2)):
            raise WrongResult(f"{kernel.__name__} on {world.size} ranks, rank {world.rank}, call {number}: the result is not what the "
                              "definition says. Nothing raced and nothing misused a semaphore. Look at coordinates, bands and who waits "
                              "for which.")


def define_layer(x, indices, weights, w1, w2):
    """Two products with max(., 0) between, each rounded to x's dtype; a token's sum over its slots in float32, rounded once."""
    out = np.zeros((len(x), w2.shape[2]), np.float32)
    for (t, j), e in np.ndenumerate(indices):
        if 0 <= e < len(w1):
            h = np.maximum(x[t].astype(np.float32) @ w1[e].astype(np.float32), 0).astype(x.dtype)
            out[t] += weights[t, j] * (h.astype(np.float32) @ w2[e].astype(np.float32)).astype(x.dtype).astype(np.float32)
    return out.astype(x.dtype)


#: Class name -> its toy.
GROUPED = {"GroupedGemm": grouped, "MoeDispatchGemm": experts, "MoeCombine": experts}
