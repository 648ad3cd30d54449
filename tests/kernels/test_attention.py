"""attention on the interpreter: exact cases, derived bounds against float64, seeds and schedules, edges, bad calls."""

import numpy as np
import pytest

from pknumba import AttentionConfig, World, attention, errors
from pknumba.templates import attending

from .attending import assert_attention, definition, exact_heads, heads
from .harness import schedule
from .products import readable


def run(arrays, seed=0, sms=4, policy="random", completion="random", world=1, **options):
    """What attention gives on every rank of a local world."""
    session = dict(executor="interpreter", num_sms=sms, seed=seed, policy=policy, completion=completion)
    return World.local(world, **session).run(lambda w: attention(w, *arrays, **options))


def check(shape, seed=0, dtype="bfloat16", causal=False, shift=0, loud=1.0, between=False, **options):
    """One call on normal numbers, against the definition."""
    b, s, t, h, p, d = shape
    q, k, v = heads(np.random.default_rng(seed), b, s, t, h, p, d, dtype, loud, between)
    (o, lse), = run((q, k, v), **schedule(seed), causal=causal, shift=shift, **options)
    assert o.shape == q.shape and o.dtype == q.dtype and lse.shape == q.shape[:3] and lse.dtype == np.float32
    assert (o.strides[1] < o.strides[2]) == (h > 1 and between), "the result lies as q does"
    assert_attention(o, lse, definition(q, k, v, causal, options.get("scale"), shift), f"{shape} {options}")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_exact(seed, causal):
    """Several tiles for every block, grouped heads, every policy and way of completing; O is exact."""
    cfg = (None, AttentionConfig(consumers=2, kv=32, stages=2), AttentionConfig(consumers=1, kv=16, stages=3, q_stages=1))[seed % 3]
    shape = (1, 150, 110, 4, 2, 64) if seed % 2 else (2, 100, 100, 2, 1, 64)
    q, k, v, o, lse = exact_heads(np.random.default_rng(seed), *shape, causal=causal)
    (found, sums), = run((q, k, v), **schedule(seed), sms=2 + seed % 2, causal=causal, scale=1.0, config=cfg)
    assert (found.astype(np.float32) == o).all() and np.abs(sums - lse).max() < 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [64, 96, 128, 192, 256])
def test_widths(width, dtype):
    """Also those that tiles do not divide."""
    check((1, 70, 130, 2, 1, width), seed=width, dtype=dtype, causal=width % 64 > 0)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 200), (64, 80), (65, 81), (192, 160), (193, 1), (200, 77)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths(lengths, causal):
    s, t = lengths
    check((2, s, t, 2, 2, 64), seed=s + t, causal=causal)
    check((1, s, t, 3, 1, 64), seed=s, causal=True, shift=t - s, between=True)


def test_loud_scores_raise_the_maximum():
    """Scores of hundreds: maxima climb, sums are rescaled; with and without slack."""
    for slack in (0, 8):
        check((1, 130, 400, 2, 2, 64), loud=30.0, config=AttentionConfig(slack=slack, width=64))
    check((1, 130, 400, 2, 2, 64), loud=1000.0, scale=0.01, causal=True)
    check((1, 20, 40, 1, 1, 64), scale=1e-42)


def test_nothing_to_see():
    """Queries before the first key, no key, no query, no head: 0 and -inf, or nothing."""
    check((1, 150, 100, 1, 1, 64), causal=True, shift=-70)
    check((1, 150, 100, 1, 1, 64), causal=True, shift=-1000)
    check((2, 70, 0, 2, 1, 64))
    for shape in ((1, 0, 50, 1, 1, 64), (0, 5, 5, 1, 1, 64)):
        check(shape)


def test_more_tiles_than_are_listed(monkeypatch):
    """Then blocks take the next by number, as they do where tiles are equal; the bits are the same."""
    arrays = heads(np.random.default_rng(5), 1, 300, 300, 4, 2, 64)
    listed, = run(arrays, sms=3, causal=True)
    monkeypatch.setattr(attending, "MOST_LISTED", 7)
    plain, = run(arrays, sms=3, causal=True)
    assert all((a == b).all() for a, b in zip(listed, plain))


def test_nan():
    """A NaN in q spoils its row; one in k the rows that see it; nothing hangs."""
    q, k, v = heads(np.random.default_rng(0), 1, 100, 100, 1, 1, 64)
    q[0, 0, 7, 1], k[0, 0, 60, 2] = np.nan, np.nan
    (o, lse), = run((q, k, v), causal=True)
    spoilt = [i == 7 or i >= 60 for i in range(100)]
    assert np.isnan(o[0, 0].astype(float)).any(1).tolist() == spoilt == np.isnan(lse[0, 0]).tolist()


def test_results_are_given_or_made():
    q, k, v = heads(np.random.default_rng(1), 1, 40, 40, 2, 2, 64)
    out, lse = np.empty_like(q), np.empty(q.shape[:3], np.float32)

    def main(world):
        found = [attention(world, q, k, v, out=out, lse=lse), attention(world, q, k, v)]
        assert found[0][0] is out and found[0][1] is lse
        return found
    (first, second), = World.local(1, executor="interpreter").run(main)
    assert (first[0] == second[0]).all() and (first[1] == second[1]).all(), "the same inputs give the same bits"


def test_every_rank_for_itself():
    arrays = heads(np.random.default_rng(2), 1, 70, 70, 1, 1, 64)
    results = run(arrays, world=3)
    assert all((o == results[0][0]).all() for o, _ in results)


def zeros(heads, width, rows=10, dtype="float16"):
    return np.zeros((1, heads, rows, width), dtype)


Q, K = zeros(4, 64), zeros(2, 64)
#: What is wrong -> (arrays, options, error, word of its message).
BAD = {
    "three dimensions": ((Q[0], K, K), {}, errors.ShapeError, "q"),
    "float32": ((Q.astype("float32"), K, K), {}, errors.DTypeError, "q"),
    "k unlike v": ((Q, K, K[:, :, :5]), {}, errors.ShapeError, "v"),
    "heads that do not divide": ((Q, zeros(3, 64), zeros(3, 64)), {}, errors.ShapeError, "3 heads"),
    "no head to see": ((Q, zeros(0, 64), zeros(0, 64)), {}, errors.ShapeError, "0 heads"),
    "another width": ((Q, zeros(2, 32), zeros(2, 32)), {}, errors.ShapeError, "width"),
    "too wide": ((zeros(1, 264),) * 3, {}, errors.ShapeError, "256"),
    "rows of 40 bytes": ((zeros(1, 20),) * 3, {}, errors.LayoutError, "16"),
    "elements apart": ((zeros(4, 128)[..., ::2], K, K), {}, errors.LayoutError, "strides"),
    "two dtypes": ((Q, K, zeros(2, 64, dtype="float32")), {}, errors.DTypeError, "v"),
    "no array": ((Q, K, 3), {}, errors.ContractError, "v"),
    "negative scale": ((Q, K, K), dict(scale=-1.0), errors.ShapeError, "scale"),
    "scale of NaN": ((Q, K, K), dict(scale=float("nan")), errors.ShapeError, "scale"),
    "shift of what is not causal": ((Q, K, K), dict(shift=3), errors.ShapeError, "shift"),
    "causal is no bool": ((Q, K, K), dict(causal="yes"), errors.ShapeError, "causal"),
    "out of another shape": ((Q, K, K), dict(out=K.copy()), errors.ShapeError, "out"),
    "lse of float16": ((Q, K, K), dict(lse=Q[..., 0].copy()), errors.DTypeError, "lse"),
    "config of another kind": ((Q, K, K), dict(config=3), errors.ContractError, "AttentionConfig"),
    "too many keys at once": ((Q, K, K), dict(config=AttentionConfig(kv=256)), errors.ConfigError, "registers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    arrays, options, kind, word = BAD[name]
    with pytest.raises(kind) as caught:
        run(arrays, **options)
    readable(caught.value, word)
