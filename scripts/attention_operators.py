"""What run.py and the tests know of attention: an operator's A holds the queries, keys and values of a rank's rows beside each other.

Sizes read as: m rows of the sequence, n elements of a head; k plays no part.
"""

from dataclasses import dataclass

import numpy as np
from operators import DTYPES, FLOAT32, ROUNDING, UNDERFLOW, Operator


@dataclass(frozen=True)
class Heads(Operator):
    """Attention over a sequence; twice as many query heads as heads of K and V.

    Attributes:
        causal: whether a row sees only those before it. pairs: heads of K and V; 0: one for each rank.
    """

    summed: bool = False
    formula: str = "softmax(Q @ K.T / sqrt(n)) @ V for every head"
    causal: bool = False
    pairs: int = 1

    def heads(self, size):
        """(query heads, heads of K and V)."""
        pairs = self.pairs or size
        return 2 * pairs, pairs

    def width(self, size, n):
        """Columns of the result: its heads beside each other."""
        return self.heads(size)[0] * n

    def make(self, rank, m, n, k, dtype, seed):
        """Normal numbers for 16 query heads and as many of K and V; ``split`` takes as many as are played."""
        rng = np.random.default_rng([seed, rank])
        return rng.standard_normal((m, 3 * 16 * n), dtype=np.float32).astype(DTYPES[dtype]), np.zeros((1, n), DTYPES[dtype])

    def split(self, size, n):
        """{q, k or v: (first column, heads)} of A."""
        heads, pairs = self.heads(size)
        return {"q": (0, heads), "k": (16 * n, pairs), "v": (32 * n, pairs)}

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays: views of A in which heads lie between rows."""
        import pknumba
        n = B.shape[1]
        q, k, v = (heads_of(A, first, heads, n) for first, heads in self.split(world.size, n).values())
        result = empty_like(world, A, (A.shape[0], self.width(world.size, n)))
        more = {"rows": rows} if self.form == "gathered" else {}
        more |= {"causal": self.causal} if self.name != "ring_attention" else {"causal": self.causal, "zigzag": False}
        getattr(pknumba, self.name)(world, q, k, v, out=heads_of(result, 0, self.heads(world.size)[0], n), config=config, **more)
        return result

    def flops(self, m, n, k):
        """Of one head; half of it where rows see only those before."""
        return 4 * m * m * n * self.heads(1)[0] // (2 if self.causal else 1)

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator, for some rows of this rank."""
        A = np.concatenate([inputs(r)[0] for r in range(inputs.size)]) if self.form == "gathered" else inputs(rank)[0]
        n, first = inputs(rank)[1].shape[1], len(np.concatenate([np.zeros(0), *(inputs(r)[0][:, 0] for r in range(rank))]))
        where = rows + (first if self.form == "gathered" else 0)
        return attended(A, self.split(inputs.size, n), n, where, where if self.causal else None, dtype)

    def share(self, rank, size, m):
        """Indices of this rank's own rows."""
        return np.arange(len(np.array_split(np.arange(m), size)[rank])) if self.form == "gathered" else np.arange(m)


@dataclass(frozen=True)
class Decode(Heads):
    """Attention of one query, B, over the rows of all ranks: a row of the result for each of its heads."""

    def width(self, size, n):
        """Columns of the result."""
        return n

    def share(self, rank, size, m):
        """Every rank has every head."""
        return np.arange(self.heads(size)[0])

    def make(self, rank, m, n, k, dtype, seed):
        """As in Heads, and the same query on every rank."""
        B = np.random.default_rng(seed).standard_normal((self.heads(1)[0], n), dtype=np.float32)
        return super().make(rank, m, n, k, dtype, seed)[0], B.astype(DTYPES[dtype])

    def call(self, world, A, B, out=None, config=None, rows=None):
        """The operator on this rank's arrays."""
        import pknumba
        n, parts = B.shape[1], self.split(world.size, B.shape[1])
        k, v = (heads_of(A, *parts[x], n) for x in "kv")
        return rows_of(pknumba.decode_attention(world, rows_of(B, (1, *B.shape)), k, v, config=config)[0], B.shape)

    def flops(self, m, n, k):
        """Of all heads."""
        return 4 * m * n * self.heads(1)[0]

    def expected(self, inputs, rank, rows, dtype):
        """As in Operator, for some heads."""
        A, (_, B) = np.concatenate([inputs(r)[0] for r in range(inputs.size)]), inputs(rank)
        n, parts = B.shape[1], self.split(inputs.size, B.shape[1])
        whole = np.concatenate([np.tile(B.reshape(1, -1), (len(A), 1)), A[:, 16 * n:]], axis=1)
        parts = {"q": (0, len(B)), "k": (len(B) * n, parts["k"][1]), "v": (len(B) * n + 16 * n, parts["v"][1])}
        value, bound = attended(whole, parts, n, np.zeros(1, int), None, dtype)
        return value.reshape(-1, n)[rows], bound.reshape(-1, n)[rows]


def attended(A, parts, n, rows, positions, dtype):
    """(O, largest error) in float64 of some rows of A, which holds heads of Q, K and V beside each other.

    A score is a float32 sum like those of a product, scaled and lessened by the maximum with two more roundings; exp2 is off by 2 units.
    Weights are rounded to the dtype, relative to a maximum that may be 2^8 too small; sums are chains as in a product.
    """
    q, k, v = (np.stack(np.split(A[:, first:first + heads * n].astype(np.float64), heads, axis=1)) for first, heads in parts.values())
    found = []
    for h, queries in enumerate(q[:, rows]):
        keys, values = (x[h * len(k) // len(q)] for x in (k, v))
        scores = queries @ keys.T * n ** -0.5
        if positions is not None:
            scores = np.where(np.arange(len(keys)) <= positions[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        norms = np.linalg.norm(queries, axis=1, keepdims=True) * np.linalg.norm(keys, axis=1).max() * n ** -0.5
        error = FLOAT32 * ((n / 16 + 70) * norms + 8)
        mass, u = weights @ np.abs(values), ROUNDING[dtype]
        bound = (u + 2 * error + 2 * (len(keys) / 16 + 64) * FLOAT32) * mass + UNDERFLOW[dtype] * np.abs(values).sum(0)
        found.append((weights @ values, bound))
    value, bound = (np.concatenate(x, axis=1) for x in zip(*found))
    return value, bound + u * (np.abs(value) + bound) + UNDERFLOW[dtype]


def heads_of(x, first, heads, n):
    """(1, heads, rows, n) of the columns of a matrix from ``first`` on, without a copy."""
    if isinstance(x, np.ndarray):
        return x[:, first:first + heads * n].reshape(len(x), heads, n).swapaxes(0, 1)[None]
    from pknumba.runtime import DeviceArray
    from pknumba.runtime.arrays import describe
    info = describe(x)
    (pitch, size), rows = info.strides, info.shape[0]
    strides = (rows * pitch, n * size, pitch, size)
    return DeviceArray(info.pointer + first * size, (1, heads, rows, n), info.dtype, info.device, strides, x)


def rows_of(x, shape):
    """A contiguous array with another shape, without a copy."""
    if isinstance(x, np.ndarray):
        return x.reshape(shape)
    from pknumba.runtime import DeviceArray
    from pknumba.runtime.arrays import describe
    info = describe(x)
    return DeviceArray(info.pointer, shape, info.dtype, info.device, owner=x)


def empty_like(world, x, shape):
    """A new array on this executor."""
    if world.executor == "interpreter":
        return np.empty(shape, x.dtype)
    from pknumba.runtime import DeviceArray
    from pknumba.runtime.arrays import describe
    return DeviceArray.empty(shape, describe(x).dtype, world.device)


OPERATORS = {h.name: h for h in (
    Heads("attention", "AttentionConfig", causal=True), Heads("ring_attention", "RingAttentionConfig", form="gathered", causal=True),
    Heads("ulysses_attention", "UlyssesAttentionConfig", form="gathered", pairs=0),
    Decode("decode_attention", "DecodeAttentionConfig", form="gathered"))}
