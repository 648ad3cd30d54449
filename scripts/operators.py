"""What run.py, the benchmarks and the tests know of each operator: its inputs, its NumPy meaning, its cost, its error bound.

One entry of ``OPERATORS`` per operator; a new operator adds one. Everything here is NumPy on one process: ``make`` draws
the inputs of a rank, so that any rank can compute what the others held.
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import ml_dtypes
import numpy as np

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}
#: Half the gap between 1 and the next number: the largest relative error of rounding to nearest.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
#: Smallest error of a value that is nearly zero: half the smallest subnormal number.
UNDERFLOW = {"bfloat16": 2.0**-134, "float16": 2.0**-25, "float32": 2.0**-150}
#: Error of a product of two numbers of which tensor cores take the 10 highest bits of the mantissa: (1 + 2^-10)^2 - 1.
CUT = {"float32": 2.0**-9 + 2.0**-20}
#: One addition on a tensor core, which may cut off instead of rounding to nearest.
FLOAT32 = 2.0**-23


@dataclass(frozen=True)
class Operator:
    """An operator as the scripts see it.

    Attributes:
        name: of the public function in pknumba.
        config: name of its configuration class in pknumba.
        summed: True where the result is a sum over ranks.
        form: what a rank has: "whole" A and C, its share of C's rows ("scattered"), or its share of A's rows ("gathered").
        formula: for people.
    """

    name: str
    config: str
    summed: bool
    formula: str
    form: str = "whole"

    @property
    def symmetric(self):
        """Whether the result is made in symmetric memory: given as out, it need not be copied from there."""
        return self.summed and self.form == "whole"

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays. rows: of the whole product, where A is gathered."""
        import pknumba
        more = {"rows": rows} if self.form == "gathered" else {}
        return getattr(pknumba, self.name)(world, A, B, out=out, config=config, **more)

    def share(self, rank, size, m):
        """Indices of the rows of the whole product that a rank gets."""
        return np.array_split(np.arange(m), size)[rank] if self.form == "scattered" else np.arange(m)

    def width(self, size, n):
        """Columns of a result."""
        return n

    def make_config(self, changes):
        """Configuration with the fields of ``changes`` (a dict) set; None, which lets the operator choose, without any."""
        import pknumba
        return getattr(pknumba, self.config)().replace(**changes) if changes else None

    def make(self, rank, m, n, k, dtype, seed):
        """Inputs A (m, k) and B (k, n) of a rank: normal, B scaled so that the result is near 1. No two ranks draw the same."""
        rng = np.random.default_rng([seed, rank])
        A = rng.standard_normal((m, k), dtype=np.float32)
        B = rng.standard_normal((k, n), dtype=np.float32) / np.float32(max(k, 1) ** 0.5)
        A, B = A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])
        return A, np.asfortranarray(B) if dtype == "float32" else B         # tensor cores take float32 along the depth

    def flops(self, m, n, k):
        """Floating-point operations of one rank."""
        return 2 * m * n * k

    def expected(self, inputs, rank, rows, dtype):
        """The result in float64 and the largest error that a right implementation can make, both for some rows.

        Args:
            inputs: an Inputs.
            rank: whose result.
            rows: index array of the rows wanted, of the whole product.
        Returns:
            (value, bound): float64 arrays (len(rows), N). Every element must lie within its bound.
        """
        u, total, bound = ROUNDING[dtype], 0.0, 0.0
        terms = [inputs(r) for r in (range(inputs.size) if self.summed else [rank])]
        if self.form == "gathered":
            terms = [(np.concatenate([inputs(r)[0] for r in range(inputs.size)]), terms[0][1])]
        nodes = dict.fromkeys(inputs.nodes, 0.0) if self.summed and len(set(inputs.nodes)) > 1 else {}
        for i, (A, B) in enumerate(terms):
            product, error = exact_product(A[rows], B, CUT.get(dtype, 0.0))
            # A term of a sum over ranks may be rounded to the dtype before it is added in float32.
            if self.summed:
                error += u * np.abs(product) + UNDERFLOW[dtype] + len(terms) * FLOAT32 * np.abs(product)
            total, bound = total + product, bound + error
            nodes.update({inputs.nodes[i]: nodes[inputs.nodes[i]] + product} if nodes else {})
        # What nodes send each other is rounded, and the result once more, at its inexact value.
        bound = bound + u * sum(np.abs(p) + bound for p in nodes.values())
        return total, bound + u * (np.abs(total) + bound) + UNDERFLOW[dtype]


def exact_product(A, B, cut=0.0):
    """(float64 product, largest error of its float32 sum). cut: error of each product that is added, as a share of it.

    The sum of K products is a chain of additions, each off by at most FLOAT32 of the partial sum, which is at most |a_i| |b_j|
    (Cauchy-Schwarz). The chain has a link per 16 products on a tensor core (one wgmma adds 16), or per tile of 64 and within a tile on
    the CPU: K / 16 + 64 covers both.
    """
    A, B = A.astype(np.float64), B.astype(np.float64)
    chain = (A.shape[1] / 16 + 64) * FLOAT32 * (1 + cut) + cut
    return A @ B, chain * np.outer(np.linalg.norm(A, axis=1), np.linalg.norm(B, axis=0))


@dataclass(frozen=True)
class Exchange(Operator):
    """A product of which every rank gets its rows from all ranks, one beside the other."""

    def width(self, size, n):
        """Those of every rank's product."""
        return size * n

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator, for each rank's product."""
        return tuple(map(np.hstack, zip(*(super(Exchange, self).expected(inputs, r, rows, dtype) for r in range(inputs.size)))))


@dataclass(frozen=True)
class Collective(Operator):
    """A collective of A, m x n; K and B play no part. A rank that gets no result is taken to have its own A.

    Attributes:
        define: function (every rank's A, rank) of the result.
        root: rank that alone has a result; None where all have.
        arguments: further ones of the call.
    """

    config: str = "CommConfig"
    summed: bool = False
    formula: str = ""
    define: object = None
    root: int | None = None
    arguments: tuple = ()

    @property
    def symmetric(self):
        """As in Operator; a root's result need not be symmetric."""
        return super().symmetric and self.root is None

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's array."""
        import pknumba
        arguments = {k: v(world.size) if callable(v) else v for k, v in self.arguments}
        result = getattr(pknumba, self.name)(world, A, out=out, config=config, **arguments)
        return A if result is None else result

    def share(self, rank, size, m):
        """Indices of the rows of the whole that a rank gets."""
        if self.root not in (None, rank) and self.form == "gathered":
            return np.array_split(np.arange(m), size)[rank]
        return super().share(rank, size, m)

    def make(self, rank, m, n, k, dtype, seed):
        """Normal numbers; no two ranks draw the same."""
        A = np.random.default_rng([seed, rank]).standard_normal((m, n), dtype=np.float32)
        return A.astype(DTYPES[dtype]), np.zeros((1, 1), np.float32)

    def flops(self, m, n, k):
        """Additions do not count."""
        return 0

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator: a copy is exact; a sum of float32 in rank order is rounded once."""
        As = [inputs(r)[0].astype(np.float64) for r in range(inputs.size)]
        mine = self.root in (None, rank)
        value = self.define(As, rank) if mine else As[rank]
        mine_of_all = self.share(rank, inputs.size, sum(map(len, As)) if self.form == "gathered" else len(As[0]))
        value = value[np.searchsorted(mine_of_all, rows)]
        bound = np.full(value.shape, UNDERFLOW[dtype])
        if self.summed and mine:
            most, again = sum(map(np.abs, As)).max(initial=0), len(set(inputs.nodes)) > 1     # rounded once more where nodes meet
            bound += (len(As) * FLOAT32 + again * ROUNDING[dtype]) * most + ROUNDING[dtype] * np.abs(value)
        return value, bound


@dataclass(frozen=True)
class Norm(Collective):
    """all_reduce_rmsnorm of A; B holds the residual, and below it the weight, the same on every rank."""

    eps: float = 1e-5

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The norm."""
        import pknumba
        return pknumba.all_reduce_rmsnorm(world, A, B[:-1], B[-1], eps=self.eps, out=out, config=config)[0]

    def make(self, rank, m, n, k, dtype, seed):
        """Normal numbers."""
        B = np.random.default_rng([seed]).standard_normal((m + 1, n), dtype=np.float32)
        return super().make(rank, m, n, k, dtype, seed)[0], B.astype(DTYPES[dtype])

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator. h is off by the roundings of its sum and its own, e; its norm by e times the scale, by the root's relative
        error (|e| / |h|, and the roundings of n squares added in float32), and by rounding once."""
        sums, e = super().expected(inputs, rank, rows, dtype)
        B = inputs(rank)[1].astype(np.float64)
        h, weight, u = sums + B[rows], B[-1], ROUNDING[dtype]
        e = e + (u + FLOAT32) * np.abs(h) + (inputs.size + 1) * FLOAT32 * np.abs(B[rows])
        length = np.sqrt((h * h).mean(1, keepdims=True) + self.eps)
        root = np.linalg.norm(e, axis=1, keepdims=True) / np.sqrt(h.shape[1]) / length + (h.shape[1] / 2 + 8) * FLOAT32
        y = h / length * weight
        bound = (e / length * np.abs(weight) + root * np.abs(y)) * (1 + 2 * root)
        return y, bound + u * (np.abs(y) + bound) + UNDERFLOW[dtype]


class Inputs:
    """The inputs (A, B) of every rank: drawn from a seed, or given. Callable with a rank; ``size`` ranks exist, on ``nodes`` by number.

    Args:
        arrays: (A, B) to use instead of drawing; one of three dimensions holds a matrix per rank, one of two is every rank's.
    """

    def __init__(self, operator, size, shape, dtype, seed=0, arrays=None):
        self.operator, self.size, self.arrays, self.nodes = operator, size, arrays, [0] * size
        self.draw = lru_cache(maxsize=8)(lambda rank: operator.make(rank, *shape, dtype, seed))

    def __call__(self, rank):
        A, B = self.draw(rank) if self.arrays is None else (a[rank] if a.ndim == 3 else a for a in self.arrays)
        return (np.array_split(A, self.size)[rank] if self.operator.form == "gathered" else A), B


def relative_error(value, reference):
    """Norm of the difference over the norm of the reference; 0 for two empty or two zero arrays, NaN never passes."""
    norm = np.linalg.norm(reference)
    error = np.linalg.norm(np.asarray(value, np.float64) - reference)
    return float(error / norm if norm else error)


OPERATORS = {
    "gemm": Operator("gemm", "GemmConfig", summed=False, formula="C = A @ B on every rank"),
    "gemm_all_reduce": Operator("gemm_all_reduce", "GemmAllReduceConfig", summed=True, formula="C = sum over ranks r of A_r @ B_r"),
    "all_gather_gemm": Operator("all_gather_gemm", "AllGatherGemmConfig", summed=False, form="gathered",
                                formula="C = (all ranks' A, one after the other) @ B"),
    "gemm_reduce_scatter": Operator("gemm_reduce_scatter", "GemmReduceScatterConfig", summed=True, form="scattered",
                                    formula="rank's rows of the sum over ranks r of A_r @ B_r"),
    "gemm_all_to_all": Exchange("gemm_all_to_all", "GemmAllToAllConfig", summed=False, form="scattered",
                                formula="rank's rows of every A_r @ B_r, one beside the other"),
}
#: The ranks of a ring: each sends to the next.
_RING = ("pairs", lambda size: [(r, (r + 1) % size) for r in range(size)])
OPERATORS |= {c.name: c for c in (
    Collective("all_reduce", summed=True, formula="A_0 + A_1 + ...", define=lambda A, r: sum(A)),
    Norm("all_reduce_rmsnorm", config="NormConfig", summed=True, formula="h / rms(h) * weight, h = residual + A_0 + A_1 + ...",
         define=lambda A, r: sum(A)),
    Collective("all_gather", form="gathered", formula="all ranks' A, one after the other", define=lambda A, r: np.concatenate(A)),
    Collective("reduce_scatter", summed=True, form="scattered", formula="rank's rows of A_0 + A_1 + ...",
               define=lambda A, r: np.split(sum(A), len(A))[r]),
    Collective("all_to_all", formula="rank's rows of every A, one after the other",
               define=lambda A, r: np.concatenate([np.split(a, len(A))[r] for a in A])),
    Collective("broadcast", formula="A_0 on every rank", define=lambda A, r: A[0]),
    Collective("reduce", summed=True, root=0, formula="A_0 + A_1 + ... on rank 0", define=lambda A, r: sum(A)),
    Collective("gather", form="gathered", root=0, formula="all ranks' A, one after the other, on rank 0",
               define=lambda A, r: np.concatenate(A)),
    Collective("scatter", form="scattered", formula="rank's rows of A_0", define=lambda A, r: np.split(A[0], len(A))[r]),
    Collective("send_recv", formula="A of the rank before", arguments=(_RING,), define=lambda A, r: A[r - 1]),
)}

sys.path.append(str(Path(__file__).parent))
import attention_operators  # noqa: E402 - they extend the classes above
import expert_operators  # noqa: E402

OPERATORS |= expert_operators.OPERATORS | attention_operators.OPERATORS
