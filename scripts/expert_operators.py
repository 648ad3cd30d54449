"""The operators of groups of rows and of experts, as ``operators`` has the others."""

from dataclasses import dataclass

import numpy as np
from operators import DTYPES, ROUNDING, UNDERFLOW, Operator, exact_product


@dataclass(frozen=True)
class Grouped(Operator):
    """A product of groups of rows: A m x k, B a matrix for each group; half of the rows in the first, none in the second. A B of two
    dimensions is that of the only group."""

    experts: int = 4

    @staticmethod
    def ends(m, B):
        """Where groups end."""
        return np.array([m // 2, m // 2, 3 * m // 4, m] if B.ndim == 3 else [m], np.int32)

    def make(self, rank, m, n, k, dtype, seed):
        """As in Operator, with a B for each group."""
        found = [super(Grouped, self).make(rank, m, n, k, dtype, seed + 1000 * e) for e in range(self.experts)]
        return found[0][0], np.stack([B for _, B in found])

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays."""
        import pknumba
        ends = world.asarray(self.ends(A.shape[0], B))
        return pknumba.grouped_gemm(world, A, B if B.ndim == 3 else B.reshape(1, *B.shape), ends, out=out, config=config)

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator, group by group."""
        A, B = inputs(rank)
        group = np.searchsorted(self.ends(len(A), B), rows, side="right")
        value, bound = np.zeros((2, len(rows), B.shape[-1]))
        for e in np.unique(group):
            value[group == e], bound[group == e] = exact_product(A[rows[group == e]], B if B.ndim == 2 else B[e])
        return value, bound + ROUNDING[dtype] * (np.abs(value) + bound) + UNDERFLOW[dtype]


@dataclass(frozen=True)
class Layer(Operator):
    """A layer of five experts, two for each token; some slots are no expert's. A: m x k tokens of a rank. B: 5 x k x (k + n), the same on
    every rank: each expert's first matrix, k x k, beside its second, k x n.

    Attributes:
        activation: between the two products.
    """

    activation: str = "none"
    experts: int = 5

    def make(self, rank, m, n, k, dtype, seed):
        """As in Operator; B does not depend on the rank."""
        A, _ = super().make(rank, m, 1, k, dtype, seed)
        B = np.random.default_rng([seed, 77]).standard_normal((self.experts, k, k + n), dtype=np.float32) / np.float32(max(k, 1) ** 0.5)
        return A, B.astype(DTYPES[dtype])

    def router(self, rank, m):
        """(indices, weights) of a rank's tokens."""
        rng = np.random.default_rng([m, rank])
        return rng.integers(-1, self.experts, (m, 2)).astype(np.int32), rng.random((m, 2), dtype=np.float32)

    def matrices(self, world, A, B):
        """This rank's experts: the first matrices, the second ones."""
        mine = np.array_split(np.arange(self.experts), world.size)[world.rank]
        own, k = B[mine[0]:mine[-1] + 1] if len(mine) else B[:0], A.shape[1]
        return own[:, :, :k], own[:, :, k:]

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays."""
        import pknumba
        indices, weights = (world.asarray(x) for x in self.router(world.rank, A.shape[0]))
        return pknumba.moe_layer(world, A, indices, weights, *self.matrices(world, A, B), activation=self.activation,
                                 experts=self.experts, out=out, config=(config, config))

    def flops(self, m, n, k):
        """Two products for each slot."""
        return 4 * m * k * (k + n)

    def expected(self, inputs, rank, rows, dtype):
        """The first product is rounded, its activation (of a slope below 1.2) errs by 2^-9 of it on a device; then as in Operator."""
        A, B = inputs(rank)
        (indices, weights), k, u = self.router(rank, len(A)), A.shape[1], ROUNDING[dtype]
        value, bound = np.zeros((2, len(rows), B.shape[2] - k))
        for e in range(self.experts):
            h, dh = exact_product(A[rows], B[e, :, :k])
            dh = 1.2 * (dh + u * (np.abs(h) + dh) + UNDERFLOW[dtype])
            if self.activation == "silu":
                h = h / (1 + np.exp(-h))
                dh = dh + 2.0 ** -9 * np.abs(h)
            z, dz = exact_product(h, B[e, :, k:])
            dz = dz + dh @ np.abs(B[e, :, k:].astype(np.float64))
            dz = dz + u * (np.abs(z) + dz) + UNDERFLOW[dtype]
            w = np.where(indices[rows] == e, weights[rows], 0).sum(1, dtype=np.float64)[:, None]
            value, bound = value + w * z, bound + w * (dz + 2.0 ** -20 * np.abs(z))
        return value, bound + u * (np.abs(value) + bound) + UNDERFLOW[dtype]


@dataclass(frozen=True)
class Dispatch(Layer):
    """The rows of this rank's experts times their first matrices, of k x n here."""

    def make(self, rank, m, n, k, dtype, seed):
        """As in Layer; the second matrices have no columns."""
        A, B = super().make(rank, m, n, k, dtype, seed)
        return A, np.ascontiguousarray(B[:, :, :n]) if n <= k else np.concatenate([B] * -(-n // k), 2)[:, :, :n].copy()

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays; of its result, the rows that the router filled."""
        import pknumba
        indices = world.asarray(self.router(world.rank, A.shape[0])[0])
        mine = np.array_split(np.arange(self.experts), world.size)[world.rank]
        own = B[mine[0]:mine[-1] + 1] if len(mine) else B[:0]
        Y, _ = pknumba.moe_dispatch_gemm(world, A, indices, own, experts=self.experts, config=config)
        return Y[:len(self.received(world.size, world.rank, A.shape[0]))]

    def received(self, size, rank, m):
        """(expert, source rank, token) of each row that a rank gets."""
        tables = [self.router(r, m)[0].ravel() for r in range(size)]
        mine = np.array_split(np.arange(self.experts), size)[rank]
        return [(e, r, slot // 2) for e in mine for r, table in enumerate(tables) for slot in np.flatnonzero(table == e)]

    def share(self, rank, size, m):
        """Indices of the rows that a rank gets."""
        return np.arange(len(self.received(size, rank, m)))

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator, row by row."""
        names = self.received(inputs.size, rank, len(inputs(rank)[0]))
        B, u = inputs(rank)[1], ROUNDING[dtype]
        value, bound = np.zeros((2, len(rows), B.shape[2]))
        for e in range(self.experts):
            chosen = [i for i, row in enumerate(rows) if names[row][0] == e]
            if chosen:
                A = np.array([inputs(names[rows[i]][1])[0][names[rows[i]][2]] for i in chosen])
                value[chosen], bound[chosen] = exact_product(A, B[e])
        return value, bound + u * (np.abs(value) + bound) + UNDERFLOW[dtype]


OPERATORS = {
    "grouped_gemm": Grouped("grouped_gemm", "GroupedGemmConfig", summed=False, formula="C[rows of group e] = A[rows of group e] @ B_e"),
    "moe_dispatch_gemm": Dispatch("moe_dispatch_gemm", "MoeConfig", summed=False, formula="rows of this rank's experts @ their B"),
    "moe_combine": Layer("moe_combine", "MoeConfig", summed=False, formula="sum over slots of weight * (A @ B1_e) @ B2_e"),
    "moe_layer": Layer("moe_layer", "MoeConfig", summed=False, activation="silu",
                       formula="sum over slots of weight * silu(A @ B1_e) @ B2_e"),
}
