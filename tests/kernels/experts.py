"""What tests of a mixture of experts share: data, the NumPy definitions, and the error that rounding may make."""

import numpy as np

from pknumba.checking.groups import define_layer
from pknumba.primitives.activation import FUNCTIONS

from .products import DTYPES, UNIT, matrix, reference


def routed(x, indices, experts, rank):
    """(rows of that rank's experts, their ends, (source rank, slot) of each row)."""
    mine, rows, ends, names = np.array_split(np.arange(experts), len(x))[rank], [], [], []
    for expert in mine:
        for source, table in enumerate(indices):
            for slot in np.flatnonzero(table.ravel() == expert):
                rows.append(x[source][slot // table.shape[1]])
                names.append((source, int(slot)))
        ends.append(len(rows))
    return np.array(rows, x[0].dtype).reshape(-1, x[0].shape[1]), np.array(ends, np.int32), names


def layer(x, indices, weights, w1, w2, activation):
    """(a token's result in float64, its bound): each product is rounded once to the dtype, an activation has a slope of at most 1.2 and
    errs on the device by 2^-9 of its value, the sum over slots is made in float32 and rounded once."""
    dtype, f = x.dtype.name, FUNCTIONS[activation]
    u, tiny = UNIT[dtype], 2.0 ** -24
    value, bound = np.zeros((2, len(x), w2.shape[2]))
    for t, j in np.ndindex(indices.shape):
        e = indices[t, j]
        if 0 <= e < len(w1):
            h, dh = reference([(x[t:t + 1], w1[e])], dtype)
            h, dh = f(h), 1.2 * dh + 2.0 ** -9 * np.abs(f(h)) * (activation in ("silu", "gelu"))
            second = w2[e].astype(np.float64)
            z, dz = h @ second, (dh + len(second) * 2.0 ** -24 * (np.abs(h) + dh)) @ np.abs(second)
            dz = dz + u * (np.abs(z) + dz) + tiny
            value[t] += weights[t, j] * z[0]
            bound[t] += abs(weights[t, j]) * (dz[0] + indices.shape[1] * 2.0 ** -23 * (np.abs(z[0]) + dz[0]))
    return value, bound + u * (np.abs(value) + bound) + tiny


class Problem:
    """Inputs of every rank: tokens, router's indices (some of them no expert's), weights; and the experts' matrices.

    Args:
        exact: small integers, so that every sum is exact.
    """

    def __init__(self, seed, size, tokens, top_k, experts, h, f, n, dtype="bfloat16", exact=False):
        rng, kind = np.random.default_rng(seed), DTYPES[dtype]
        draw = (lambda *shape: rng.integers(-1, 2, shape).astype(kind)) if exact else (lambda *shape: matrix(rng, shape, dtype))
        self.x = [draw(tokens, h) for _ in range(size)]
        self.indices = [rng.integers(-1, experts + 1, (tokens, top_k)).astype(np.int32) for _ in range(size)]
        shape = tokens, top_k
        self.weights = [(rng.integers(0, 3, shape) if exact else rng.random(shape)).astype(np.float32) for _ in range(size)]
        self.w1, self.w2, self.experts, self.size, self.exact = draw(experts, h, f), draw(experts, f, n), experts, size, exact

    def mine(self, rank, columns=False):
        """(X, indices, weights, W1, W2) of a rank."""
        w = [np.array_split(x, self.size)[rank] for x in (self.w1, self.w2)]
        if columns:
            w = [np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1) for x in w]
        return self.x[rank], self.indices[rank], self.weights[rank], *w

    def check(self, rank, out, activation, what=""):
        """Assert that a rank's result is right."""
        mine = self.x[rank], self.indices[rank], self.weights[rank], self.w1, self.w2, activation
        if self.exact:
            assert activation == "relu"
            wrong = out != define_layer(*mine[:-1])
        else:
            value, bound = layer(*mine)
            wrong = ~(np.abs(np.asarray(out, np.float64) - value) <= bound)
        assert out.shape == (len(self.x[rank]), self.w2.shape[2]) and out.dtype == self.x[rank].dtype
        assert not wrong.any(), f"{what} rank {rank}: {wrong.sum()} of {wrong.size} wrong, first at {np.argwhere(wrong)[0]}"
