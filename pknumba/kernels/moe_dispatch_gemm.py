"""Mixture of experts, first half: tokens go to the ranks that have their experts, and are multiplied there as they arrive."""

from ..config import CommConfig, MoeConfig
from ..primitives import add_up, carry, deal, div, drop, i32, least, look, mod, post, put, spread, tally, wait_until
from ..templates import Comm, Experts, Tokens, dispatch, routed
from .grouped_gemm import GroupedGemm


class Route(Comm):
    """What a router's indices mean: every rank counts its tokens for each expert, tells all, and deals out rows of the experts' ranks.

    A warp has an expert and a stretch of the entries: task expert * stretches + stretch. ``starts``: for each rank, each expert and the
    number of all, each stretch: its entries below that. ``place``: row of each of this rank's slots, or -1; those of other ranks count
    from ``capacity`` on. ``source``: rank * slots + slot of each row of this rank's experts. ``ends``: rows at which those end. Numbers:
    this rank has ``own`` entries, none has more than ``slots``; ``stretches``, of ``long`` entries each.
    """

    tensors, symmetric, counters = ("indices", "starts", "place", "source", "ends"), ("starts", "source"), ("counted", "dealt")
    kinds = dict.fromkeys(tensors, "int32")
    numbers = {"slots": 1, "own": 1, "experts": 1, "capacity": 1, "stretches": 1, "long": 1}
    operator = "moe_dispatch_gemm"

    @classmethod
    def driver(kernel, role):
        """Two rounds with a meeting after each."""
        return lambda communicate, _: routed(kernel, communicate)

    @staticmethod
    def home(cfg, g, expert):
        """(rank that has an expert, the first of that rank's experts)."""
        rows, extra = div(g.experts, g.world_size), mod(g.experts, g.world_size)
        long = extra * (rows + 1)
        owner = div(expert, rows + 1) if expert < long else i32(extra + div(expert - long, rows))
        return owner, i32(owner * rows + least(owner, extra))

    @staticmethod
    def below(cfg, g, rank, expert):
        """Where the table has how many entries of a rank lie below an expert in each stretch."""
        return i32((rank * (g.experts + 1) + expert) * g.stretches)

    @staticmethod
    def stretch(cfg, g, task):
        """(expert, number of the stretch, its first entry, its end)."""
        expert, number = div(task.id, g.stretches), mod(task.id, g.stretches)
        begin = least(number * g.long, g.own)
        return expert, number, i32(begin), i32(least(begin + g.long, g.own))

    @staticmethod
    def count(cfg, g, s, task):                 # a warp: entries of a stretch below an expert
        expert, _, begin, end = Route.stretch(cfg, g, task)
        put(g.starts, i32(g.rank * (g.experts + 1) * g.stretches + task.id), tally(g.indices, begin, end, expert), True)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: rows for an expert; after the last, entries that are no expert's
        expert, number, begin, end = Route.stretch(cfg, g, task)
        if expert == g.experts:
            drop(g.indices, begin, end, g.experts, g.place)
        else:
            owner, first = Route.home(cfg, g, expert)
            here, after = add_up(g.starts, (Route.below(cfg, g, g.rank, expert), Route.below(cfg, g, g.rank, expert + 1)), number)
            row, rows = i32(after - here), i32(0)       # rows: of this expert and those before it on the same rank
            for rank in range(g.world_size):
                mine = Route.below(cfg, g, rank, first), Route.below(cfg, g, rank, expert), Route.below(cfg, g, rank, expert + 1)
                start, here, after = add_up(g.starts, mine, g.stretches)
                row = i32(row + (after if rank < g.rank else here) - start)
                rows = i32(rows + after - start)
            shift = i32(0) if owner == g.rank else g.capacity
            deal(g.indices, begin, end, expert, row, g.capacity, g.place, shift, g.source, owner, i32(g.rank * g.slots))
            if owner == g.rank and number == 0:
                put(g.ends, expert - first, least(rows, g.capacity))


class MoeGather(Tokens):
    """On one rank, what all warps do before the product: the rows of each token's experts are that token."""

    tensors = ("A", "X", "place")

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: a token
        spread(g.A, g.X, task.id, g.place, g.top_k)


class MoeDispatchGemm(Experts, GroupedGemm):
    """Communicators fetch rows from the ranks that have them, in the order of experts; compute SMs multiply tiles whose rows have come."""

    config, alone, before = MoeConfig, GroupedGemm, MoeGather
    tensors, symmetric, counters = ("A", "B", "C", "ends", "source", "X"), ("X",), ("arrived", "left")
    kinds = {**GroupedGemm.kinds, "source": "int32"}
    movers_first = True                         # or else tiles might wait for rows while nobody who fetches them finds an SM
    numbers = {**Experts.numbers, "top_k": 1}

    @staticmethod
    def bands(cfg, g):
        """Rows of each band that have come."""
        return g.arrived

    @staticmethod
    def errands(cfg, g, total):
        """A few rows each."""
        return div(total + cfg.piece_m - 1, cfg.piece_m)

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: waits for the bands of its tile
        for band in range(div(task.first, cfg.tile_m), div(task.end - 1, cfg.tile_m) + 1):
            wait_until(g.arrived, i32(band), i32(g.epoch * cfg.tile_m))
        GroupedGemm.loader(cfg, g, s, task)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: a few rows of this rank's experts
        first = i32(task.id * cfg.piece_m)
        end = least(first + cfg.piece_m, task.step)
        for row in range(first, end):
            name = look(g.source, i32(row))
            carry(g.A, i32(row), g.X, div(mod(name, g.slots), g.top_k), None, div(name, g.slots))
        post(g.arrived, div(first, cfg.tile_m), g.rank, end - first)


def moe_dispatch_gemm(world, X, indices, B, *, activation=None, tokens=None, experts=None, capacity=None, out=None,
                      config=None, stream=None):
    """The rows of all ranks' tokens that belong to this rank's experts, each times its expert's matrix; collective.

    The experts 0 .. E - 1 are divided over ranks as by ``numpy.array_split``. Row by row: experts in order, for each the ranks in order,
    for each its slots (t, j) with ``indices[t, j] == expert`` in order: ``X[t] @ B[expert]``. Nothing is read by the host.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        X: (T, H) bfloat16 or float16 tokens of this rank, possibly none, rows contiguous. A SymmetricArray of this world is read in place;
            any other costs a copy into symmetric memory that the world keeps for this shape.
        indices: (T, k) int32, contiguous, in the device's memory: experts of each token. One that is no expert's is dropped.
        B: (this rank's experts, H, N) of X's dtype, contiguous; or the transpose, ``x.transpose(0, 2, 1)``, of contiguous (.., N, H).
        activation: "none", "relu", "silu" or "gelu" of the product, in float32, before it is rounded; None: as config says, or "none".
        tokens: the most that any rank has, the same on every rank; None: all have as many as this one.
        experts: E; None: world.size times those of B.
        capacity: rows for this rank's experts at most; what comes later is dropped. None: size * tokens * k, where nothing can be dropped.
        out: (capacity, N) of the same dtype, rows contiguous; made with X's library if None.
        config: MoeConfig; chosen by shape if None. stream: as in ``gemm``; to be passed where two streams work at once, since calls of
            one shape share tables.

    Returns: (Y (capacity, N), Routes). Rows beyond the last expert's are as they were. ``Routes.ends`` is where experts' rows end (as the
    ``offsets`` of ``grouped_gemm``), ``Routes.place`` (T, k) the row of each slot on its expert's rank, + capacity if that is
    another rank, -1 if it was dropped; both int32 on the device, valid until the next call of this shape. ``moe_combine`` takes the Routes.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched; HangError if a
    rank does not come.
    """
    return dispatch((Route, CommConfig(dtype="int32")), MoeDispatchGemm, world, X, indices, B, activation, tokens, experts, capacity,
                    out, config, stream)
