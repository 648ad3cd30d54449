"""What each operator moves between ranks, in each way of overlapping it with the product."""

from dataclasses import dataclass
from functools import partial

from ..config import AllGatherGemmConfig, GemmAllReduceConfig, GemmConfig, GemmReduceScatterConfig, NormConfig

__all__ = ["Moves", "Operator", "OPERATORS"]


@dataclass(frozen=True)
class Moves:
    """What one rank sends, in one schedule.

    Attributes:
        link: bytes that leave the rank over its link. by: constant of Hardware that says how fast.
        work: bytes that communicating SMs handle, at ``rate`` bytes per second each; 0: all SMs communicate beside computing.
        order: "after": a tile is sent when it is computed; "before": it is computed when its operands have come; "own last": as "after",
            and each rank computes what it keeps at the end, while its link has nothing to do; "apart": one after the other.
        memory: bytes of its own memory that it takes beside the product's.
        steps: how many pieces overlap one after the other; 0: the waves of tiles.
    """

    link: float
    by: str
    work: float = 0.0
    rate: float = 0.0
    order: str = "after"
    memory: float = 0.0
    steps: int = 0


@dataclass(frozen=True)
class Operator:
    """A product that communicates, as the model sees it.

    Attributes:
        config: its configuration, as a function of its fields. ours: the schedule of this repository's kernel.
        sends: function (k, ranks) -> (depth, copies) of the SMs that compute and communicate at once: they multiply 2 * depth times for
            each element that they send or fetch, and do that with ``copies`` of it. None: nothing is sent.
        moves: {schedule: function (m, n, k, ranks, hardware) -> Moves}. m x n x k is one rank's product.
        share: of the tensor cores' rate that it reaches, for what is no product of matrices in tiles; 0: as tiles do.
    """

    config: object
    ours: str
    sends: object
    moves: dict
    share: float = 0.0


#: Columns of the tile of a large product: what an element of A that comes from a peer is used for.
TILE_N = 256


def _lane(hw, by):
    """Bytes per second that one SM moves over the link before the link is full."""
    return getattr(hw, by) / (hw.tma_sms if by.startswith("tma") else hw.register_sms)


def _reduce_scatter():
    def sent(m, n, size):
        return 2 * m * n * (size - 1) / size

    return {
        # every SM stores its tiles at their owner, which adds them to its own in registers
        "within": lambda m, n, k, size, hw: Moves(sent(m, n, size), "tma", order="own last", memory=4 * m * n),
        "intra": lambda m, n, k, size, hw: Moves(sent(m, n, size), "tma_add", order="own last", memory=4 * m * n),
        "switch": lambda m, n, k, size, hw: Moves(2 * m * n, "switch", 2 * m * n / size, _lane(hw, "switch"), memory=2 * m * n),
        "inter": lambda m, n, k, size, hw: Moves(sent(m, n, size), "tma", 2 * m * n, GemmReduceScatterConfig().rate, memory=4 * m * n),
        "apart": lambda m, n, k, size, hw: Moves(sent(m, n, size), "register", order="apart", memory=4 * m * n)}


def _all_reduce():
    return {
        # as the reduce-scatter; owners store their sums to every rank
        "within": lambda m, n, k, size, hw: Moves(4 * m * n * (size - 1) / size, "tma", memory=4 * m * n),
        # every SM adds its tile at every rank
        "intra": lambda m, n, k, size, hw: Moves(2 * m * n * (size - 1), "tma_add", memory=4 * m * n * size),
        # the switch reads every rank's C once and hands each owner's sum to all
        "switch": lambda m, n, k, size, hw: Moves(2 * m * n * (1 + 1 / size), "switch", 4 * m * n / size, _lane(hw, "switch"),
                                                  memory=4 * m * n),
        # owners read and write every rank's memory themselves
        "inter": lambda m, n, k, size, hw: Moves(4 * m * n * (size - 1) / size, "register", 2 * m * n, GemmAllReduceConfig.rate,
                                                 memory=4 * m * n),
        "apart": lambda m, n, k, size, hw: Moves(2 * m * n * (1 + 1 / size), "switch", order="apart", memory=6 * m * n)}


def _all_gather():
    def sent(m, k, size):
        return 2 * m * k * (size - 1) / size

    return {
        # two more threads of every SM push rows
        "within": lambda m, n, k, size, hw: Moves(sent(m, k, size), "tma", order="before", memory=2 * sent(m, k, size)),
        # peers' rows are never cached here: each column of tiles reads them over the link again
        "intra": lambda m, n, k, size, hw: Moves(sent(m, k, size) * -(-n // TILE_N), "tma", order="before"),
        "inter": lambda m, n, k, size, hw: Moves(sent(m, k, size), "tma", sent(m, k, size), AllGatherGemmConfig.rate, "before",
                                                 memory=2 * sent(m, k, size)),
        "apart": lambda m, n, k, size, hw: Moves(sent(m, k, size), "register", order="apart", memory=2 * sent(m, k, size))}


def _exchange():
    def sent(m, n, size):
        return 2 * m * n * (size - 1) / size

    return {"intra": lambda m, n, k, size, hw: Moves(sent(m, n, size), "tma"),
            "apart": lambda m, n, k, size, hw: Moves(sent(m, n, size), "register", order="apart", memory=4 * m * n)}


def _ring():
    """K and V of all heads travel round: a rank sends its share world - 1 times. m / (n / ranks) sequences and heads, 2 * k bytes a key."""
    return {"inter": lambda m, n, k, size, hw: Moves(2 * m * k * (size - 1), "tma", 2 * m * k * (size - 1), _lane(hw, "tma"), "before",
                                                     4 * m * k * size, steps=size),
            "apart": lambda m, n, k, size, hw: Moves(2 * m * k * (size - 1), "register", order="apart", memory=4 * m * k * size)}


def _ulysses():
    """Q, K and V go to the ranks that have their heads, results back: four arrays of m * k / 2 elements, less the rank's own part."""
    def sent(m, k, size):
        return 4 * m * k * (size - 1) / size

    return {"inter": lambda m, n, k, size, hw: Moves(sent(m, k, size), "tma", sent(m, k, size), _lane(hw, "tma"), "before", 8 * m * k,
                                                     steps=size),
            "apart": lambda m, n, k, size, hw: Moves(sent(m, k, size), "register", order="apart", memory=8 * m * k)}


def _dispatch():
    """Rows of tokens come to the rank that has their expert, as many to every rank: m of them."""
    def sent(m, k, size):
        return 2 * m * k * (size - 1) / size

    return {"inter": lambda m, n, k, size, hw: Moves(sent(m, k, size), "register", 2 * m * k, _lane(hw, "register"), "before", 4 * m * k),
            "apart": lambda m, n, k, size, hw: Moves(sent(m, k, size), "register", order="apart", memory=4 * m * k)}


def _combine():
    """Rows of results go back to the ranks of their tokens, which sum them."""
    def sent(m, n, size):
        return 2 * m * n * (size - 1) / size

    return {"inter": lambda m, n, k, size, hw: Moves(sent(m, n, size), "register", 4 * m * n, _lane(hw, "register"), memory=6 * m * n),
            "apart": lambda m, n, k, size, hw: Moves(sent(m, n, size), "register", order="apart", memory=6 * m * n)}


def _norm():
    """No product: m rows of n are summed over ranks, added to the residual and normalised. k counts nothing; pass 1."""
    memory = 8                                      # bytes of an element: x and the residual read, the residual and the result written
    return {"inter": lambda m, n, k, size, hw: Moves(4 * m * n * (size - 1) / size, "register", memory=memory * m * n, steps=1),
            "one-shot": lambda m, n, k, size, hw: Moves(2 * m * n * (size - 1), "register", memory=memory * m * n, steps=1),
            "apart": lambda m, n, k, size, hw: Moves(4 * m * n * (size - 1) / size, "register", order="apart", memory=12 * m * n)}


#: Name of a public function -> what the model knows of it.
OPERATORS = {
    "gemm": Operator(GemmConfig, "alone", None, {"alone": lambda m, n, k, size, hw: Moves(0, "tma")}),
    "gemm_all_reduce": Operator(partial(GemmAllReduceConfig, intra_sm=True), "within", lambda k, size: (k, size - 1), _all_reduce()),
    "gemm_reduce_scatter": Operator(partial(GemmReduceScatterConfig, intra_sm=True), "within", lambda k, size: (k, 1), _reduce_scatter()),
    "all_gather_gemm": Operator(partial(AllGatherGemmConfig, intra_sm=True), "within", lambda k, size: (TILE_N, 1), _all_gather()),
    "gemm_all_to_all": Operator(GemmConfig, "intra", lambda k, size: (k, 1), _exchange()),
    # m queries of this rank (all its sequences and heads), n keys of all ranks, k twice the head's width: 2 m n k operations. The share is
    # cuDNN's best forward pass on an H200, 677 TFLOP/s at a width of 128, over the rate of a product
    "ring_attention": Operator(GemmConfig, "inter", None, _ring(), 677 / 700),
    "moe_dispatch_gemm": Operator(GemmConfig, "inter", lambda k, size: (TILE_N, 1), _dispatch()),
    "moe_combine": Operator(GemmConfig, "inter", lambda k, size: (k, 1), _combine()),
    "ulysses_attention": Operator(GemmConfig, "inter", None, _ulysses(), 677 / 700),
    "all_reduce_rmsnorm": Operator(NormConfig, "inter", None, _norm(), 1.0),
}
