"""Attention by definition in float64, how far from it a right implementation may be, and inputs to try it on."""

from collections import namedtuple

import numpy as np

from pknumba.checking.heads import exact_heads
from pknumba.templates import attending

from .products import DTYPES

__all__ = ["Expected", "definition", "heads", "exact_heads", "part", "assert_attention", "assert_same_unlisted"]

#: Half the gap between 1 and the next number; half the smallest number; one float32 addition on a tensor core.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
UNDERFLOW = {"bfloat16": 2.0**-134, "float16": 2.0**-25}
FLOAT32 = 2.0**-23

#: O and the log-sum-exp in float64, and the largest error of each.
Expected = namedtuple("Expected", "o lse o_bound lse_bound")


def definition(q, k, v, causal=False, scale=None, shift=0):
    """The Expected of arrays (batch, heads, rows, width)."""
    dtype, (_, h, n, d), keys = q.dtype.name, q.shape, k.shape[2]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, h // k.shape[1], axis=1) for x in (k, v))
    scale = d ** -0.5 if scale is None else scale
    scores = scale * (q @ k.swapaxes(2, 3))
    if causal:
        scores = np.where(np.arange(keys) <= np.arange(n)[:, None] + shift, scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), -1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights /= np.maximum(total, 1e-300)
    with np.errstate(divide="ignore"):
        o, lse = weights @ v, (top + np.log(total))[..., 0]
    # A score is a float32 sum of d products, d / 16 + 64 additions (as in scripts/operators.py), of which none exceeds |q| |k|. It is
    # scaled, and the maximum subtracted, with two more roundings at most as large as the scaled maximum; exp2 is off by 2 ulp.
    norms = np.linalg.norm(q, axis=-1).max(-1, initial=0) * np.linalg.norm(k, axis=-1).max(-1, initial=0) * scale
    error = (FLOAT32 * ((d / 16 + 64) * norms + 4 * 1.45 * norms + 8))[..., None]
    # A weight is rounded to the dtype, relative to a maximum that may be 2^8 too small; sums are chains as above.
    u, mass, chain = ROUNDING[dtype], weights @ np.abs(v), (keys / 16 + 64) * FLOAT32
    o_bound = (u + 2 * error[..., None] + 2 * chain) * mass + UNDERFLOW[dtype] * np.abs(v).sum(-2, keepdims=True)
    return Expected(o, lse, o_bound + u * (np.abs(o) + o_bound) + UNDERFLOW[dtype], error + chain + 4 * FLOAT32 * (1 + np.abs(lse)))


def heads(rng, batch, queries, keys, heads, pairs, width, dtype="bfloat16", loud=1.0, between=False):
    """(q, k, v): normal numbers, q times ``loud``; with ``between`` heads lie between rows in memory."""
    def draw(n, rows, factor=1.0):
        shape = (batch, rows, n, width) if between else (batch, n, rows, width)
        x = (factor * rng.standard_normal(shape, dtype=np.float32)).astype(DTYPES[dtype])
        return x.swapaxes(1, 2) if between else x
    return draw(heads, queries, loud), draw(pairs, keys), draw(pairs, keys)


def part(want, rows):
    """The Expected of some queries."""
    return Expected(*(np.broadcast_to(x, y.shape)[:, :, rows] for x, y in zip(want, (want.o, want.lse, want.o, want.lse))))


def assert_attention(o, lse, want, text=""):
    """Every element of O and lse lies within its bound."""
    for name, got, value, bound in (("O", o, want.o, want.o_bound), ("lse", lse, want.lse, want.lse_bound)):
        got = got.astype(np.float64)
        with np.errstate(invalid="ignore"):                         # infinity - infinity
            same = (got == value) | (np.abs(got - value) <= bound)
        assert same.all(), f"{text}: {name} is off in {(~same).sum()} of {same.size}, first at {tuple(np.argwhere(~same)[0])}: " \
                           f"{got[~same][0]} for {value[~same][0]}, at most {np.broadcast_to(bound, same.shape)[~same][0]} off"


def assert_same_unlisted(monkeypatch, run, *shape, **options):
    """Where there are more tiles than are listed, blocks take the next by number; the bits are the same. run: of a test module; shape: of
    ``heads`` after the batch; options: of the operator."""
    data = [heads(np.random.default_rng(5), 1, *shape)]
    listed = run(2, data, shape[0], **options)
    monkeypatch.setattr(attending, "MOST_LISTED", 7)
    plain = run(2, data, shape[0], **options)
    assert all((a == b).all() for (x,), (y,) in zip(listed, plain) for a, b in zip(x, y))
