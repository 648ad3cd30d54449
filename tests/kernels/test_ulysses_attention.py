"""ulysses_attention on the interpreter: worlds, layouts, uneven shares, repeated calls, bounds against float64, mutants, bad calls."""

import numpy as np
import pytest

from pknumba import UlyssesAttentionConfig, World, errors, interpreter, ring_rows, ulysses_attention
from pknumba.checking import mutate, toys
from pknumba.checking.play import play
from pknumba.kernels import UlyssesAttention
from pknumba.templates import bands

from . import mutation
from .attending import assert_attention, assert_same_unlisted, definition, exact_heads, heads, part
from .harness import schedule
from .products import readable

TINY = UlyssesAttentionConfig(consumers=1, kv=64, stages=2, comm_sms=1, depth=1)


def mine_of(x, rows, between):
    """Some rows of x, with its layout."""
    return np.ascontiguousarray(x.swapaxes(1, 2)[:, rows]).swapaxes(1, 2) if between else np.ascontiguousarray(x[:, :, rows])


def run(size, data, rows, seed=0, between=False, sms=3, **options):
    """For each rank what every call gave, with new values in the same arrays and another rank late each time."""
    def main(world):
        mine, found = ring_rows(rows, world.size, world.rank), []
        arrays = [mine_of(x, mine, between) for x in data[0]]
        for number, inputs in enumerate(data):
            interpreter.rest(20 if number % world.size == world.rank else 0)
            for array, values in zip(arrays, inputs):
                array[...] = values[:, :, mine]
            o = ulysses_attention(world, *arrays, rows=rows, **options)
            assert o.shape[2] < 2 or (o.strides[1] < o.strides[2]) == between, "the result lies as q does"
            found.append((mine, o))
        return found
    return World.local(size, executor="interpreter", num_sms=sms, **schedule(seed)).run(main)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_worlds(size, causal):
    """Grouped heads, both layouts, two batches, shares that differ by a row, two calls."""
    rows, between = 21 * size + size // 2, size % 2 == 0
    data = [heads(np.random.default_rng(n), 2, rows, rows, 2 * size, size, 64, between=between) for n in range(2)]
    results = run(size, data, rows, seed=size, causal=causal, between=between, config=TINY)
    for number, inputs in enumerate(data):
        want = definition(*inputs, causal)
        for rank, found in enumerate(results):
            mine, o = found[number]
            assert_attention(o, part(want, mine).lse, part(want, mine), f"rank {rank} of {size}, call {number}")


@pytest.mark.parametrize("seed", range(6))
def test_exact(seed):
    """The same bits as one rank would give, under every policy and way of completing."""
    size, rows, causal = 2 + seed % 3, 60 + 17 * seed, seed % 2 == 0
    *inputs, o, _ = exact_heads(np.random.default_rng(seed), 1, rows, rows, size, size, 64, causal=causal)
    for found in run(size, [inputs] * 3, rows, seed=seed, causal=causal, scale=1.0, config=TINY):
        for mine, got in found:
            assert (got.astype(np.float32) == o[:, :, mine]).all()


def test_chosen_configuration_and_fewer_rows_than_ranks():
    for rows, between in ((3, True), (6, True), (250, False)):
        data = [heads(np.random.default_rng(rows), 1, rows, rows, 4, 4, 128, between=between)]
        want = definition(*data[0], True)
        for ((mine, o),) in run(4, data, rows, sms=16, between=between, causal=True):
            assert_attention(o, part(want, mine).lse, part(want, mine))


def test_more_tiles_than_are_listed(monkeypatch):
    assert_same_unlisted(monkeypatch, run, 300, 300, 4, 4, 64, causal=True, config=TINY)


def test_a_result_with_rows_apart():
    """What is given as out may lie anywhere."""
    q, k, v = heads(np.random.default_rng(0), 1, 40, 40, 2, 2, 64)
    want = definition(q, k, v)

    def main(world):
        mine, around = ring_rows(40, 2, world.rank), np.full((1, 2, 20, 128), np.nan, q.dtype)
        out = around[..., 64:]
        assert ulysses_attention(world, *(mine_of(x, mine, False) for x in (q, k, v)), out=out, config=TINY) is out
        assert np.isnan(around[..., :64].astype(float)).all()
        assert_attention(out, part(want, mine).lse, part(want, mine))
    World.local(2, executor="interpreter", num_sms=3).run(main)


@pytest.mark.timeout(240)
def test_every_mutant_is_noticed():
    found = mutate(UlyssesAttention, worlds=(2,), seeds=4)
    assert found and found.count >= 13, str(found)


@pytest.mark.timeout(240)
def test_every_mutant_of_the_end_of_a_call_is_noticed():
    """Storers tell when they have stored to peers, movers when they have moved; the call is over once all of every rank have."""
    def run(kernel, number):
        toy = toys.toy_of(kernel)(2 + number % 2, np.random.default_rng(number))
        play(kernel, toy, 2 + number % 2, seed=number, max_switches=200_000)

    alive, count = mutation.survivors(bands, mutation.drives(UlyssesAttention), run, 8, within={"arranged_till_consumed", "meeting_movers"})
    assert not alive and count >= 4, alive


Q = np.zeros((1, 4, 10, 64), "float16")
#: What is wrong -> (arrays of a rank, options, error, word of its message).
BAD = {
    "heads that ranks cannot share": (lambda r: (Q[:, :3],) * 3, {}, errors.ShapeError, "3 query heads"),
    "heads of k that ranks cannot share": (lambda r: (Q, Q[:, :1], Q[:, :1]), {}, errors.ShapeError, "1 heads of k and v"),
    "rows that are not the share": (lambda r: (Q,) * 3, dict(rows=21), errors.ShapeError, "share"),
    "ranks that differ in layout": (lambda r: (Q if r else mine_of(Q, slice(None), True),) * 3, {}, errors.WorldError, "layout"),
    "ranks that differ in causality": (lambda r: (Q,) * 3, {"causal": None}, errors.WorldError, "causal"),
    "config of the ring": (lambda r: (Q,) * 3, dict(config=3), errors.ContractError, "UlyssesAttentionConfig"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    """The same kind of error on every rank, before anything is launched."""
    arrays, options, kind, word = BAD[name]

    def main(world):
        given = {k: bool(world.rank) if k == "causal" else x for k, x in options.items()}
        with pytest.raises(kind) as caught:
            ulysses_attention(world, *arrays(world.rank), **given)
        readable(caught.value, word)
        return True
    assert World.local(2, executor="interpreter", num_sms=4).run(main) == [True, True]
