"""ring_attention on the interpreter: worlds, placements, uneven shares, repeated calls, bounds against float64, mutants, bad calls."""

import numpy as np
import pytest

from pknumba import RingAttentionConfig, World, errors, interpreter, ring_attention, ring_rows
from pknumba.checking import mutate
from pknumba.kernels import RingAttention

from .attending import assert_attention, assert_same_unlisted, definition, exact_heads, heads, part
from .harness import schedule
from .products import readable

TINY = RingAttentionConfig(consumers=1, kv=64, stages=2, comm_sms=1, depth=1)


def run(size, data, rows, seed=0, calls_late=20, sms=3, **options):
    """For each rank what every call gave, with new values in the same arrays and another rank late each time."""
    zigzag = bool(options.get("causal")) if options.get("zigzag") is None else options["zigzag"]

    def main(world):
        mine, found = ring_rows(rows, world.size, world.rank, zigzag), []
        arrays = [np.ascontiguousarray(x[:, :, mine]) for x in data[0]]
        for number, inputs in enumerate(data):
            interpreter.rest(calls_late if number % world.size == world.rank else 0)
            for array, values in zip(arrays, inputs):
                array[...] = values[:, :, mine]
            found.append((mine, *ring_attention(world, *arrays, rows=rows, **options)))
        return found
    return World.local(size, executor="interpreter", num_sms=sms, **schedule(seed)).run(main)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("causal, zigzag", [(False, None), (True, None), (True, False), (False, True)])
def test_worlds_and_placements(size, causal, zigzag):
    """Shares that differ by one or two rows, grouped heads, two calls."""
    rows = 31 * size + 3
    data = [heads(np.random.default_rng(n), 1, rows, rows, 2, 1, 64) for n in range(2)]
    results = run(size, data, rows, seed=size, causal=causal, zigzag=zigzag, config=TINY)
    for number, inputs in enumerate(data):
        want = definition(*inputs, causal)
        for rank, found in enumerate(results):
            mine, o, lse = found[number]
            assert_attention(o, lse, part(want, mine), f"rank {rank} of {size}, call {number}")


@pytest.mark.parametrize("seed", range(6))
def test_exact(seed):
    """The same bits as one rank would give, under every policy and way of completing."""
    size, rows, causal = 2 + seed % 3, 60 + 17 * seed, seed % 2 == 0
    *inputs, o, lse = exact_heads(np.random.default_rng(seed), 1, rows, rows, 2, 2, 64, causal=causal)
    for found in run(size, [inputs] * 3, rows, seed=seed, causal=causal, scale=1.0, config=TINY):
        for mine, got, sums in found:
            assert (got.astype(np.float32) == o[:, :, mine]).all() and np.abs(sums - lse[:, :, mine]).max(initial=0) < 1e-3


def test_chosen_configuration_and_fewer_rows_than_ranks():
    for rows, sms in ((3, 16), (300, 16)):
        data = [heads(np.random.default_rng(rows), 2, rows, rows, 2, 2, 128)]
        want = definition(*data[0], True)
        for (found,) in run(4, data, rows, sms=sms, causal=True):
            assert_attention(*found[1:], part(want, found[0]))


def test_more_tiles_than_are_listed(monkeypatch):
    assert_same_unlisted(monkeypatch, run, 300, 300, 4, 2, 64, causal=True, config=TINY)


def test_rows():
    """Every row has one owner; pieces are those of array_split."""
    for size in (1, 2, 3, 4, 8):
        for rows in (0, 1, 7, 64, 101):
            for zigzag in (False, True):
                everyone = [ring_rows(rows, size, r, zigzag) for r in range(size)]
                assert sorted(np.concatenate(everyone).tolist()) == list(range(rows))
            if rows % (2 * size) == 0:
                assert len({(mine + 1).sum() for mine in everyone}) == 1, "causal work is even"


@pytest.mark.timeout(240)
def test_every_mutant_is_noticed():
    found = mutate(RingAttention, seeds=5)
    assert found and found.count >= 19, str(found)


Q = np.zeros((1, 2, 10, 64), "float16")
#: What is wrong -> (arrays of a rank, options, error, word of its message).
BAD = {
    "rows that are not the share": (lambda r: (Q,) * 3, dict(rows=21), errors.ShapeError, "share"),
    "rows of another kind": (lambda r: (Q,) * 3, dict(rows=2.5), errors.ShapeError, "rows"),
    "k of other rows": (lambda r: (Q, Q[:, :, :4], Q[:, :, :4]), {}, errors.ShapeError, "share"),
    "zigzag": (lambda r: (Q,) * 3, dict(zigzag="no"), errors.ShapeError, "zigzag"),
    "one rank's dtype": (lambda r: (Q.astype("float32" if r else "float16"),) * 3, {}, errors.DTypeError, "float32"),
    "ranks that differ in heads": (lambda r: (Q[:, :1 + r],) * 3, {}, errors.WorldError, "q"),
    "ranks that differ in batch": (lambda r: (np.repeat(Q, 1 + r, 0),) * 3, {}, errors.WorldError, "q"),
    "no SM left": (lambda r: (Q,) * 3, dict(config=RingAttentionConfig(comm_sms=4, width=64)), errors.ConfigError, "comm_sms"),
    "config of attention": (lambda r: (Q,) * 3, dict(config=3), errors.ContractError, "RingAttentionConfig"),
    "scale": (lambda r: (Q,) * 3, dict(scale=0.0), errors.ShapeError, "scale"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    """The same kind of error on every rank, before anything is launched."""
    arrays, options, kind, word = BAD[name]

    def main(world):
        with pytest.raises(kind) as caught:
            ring_attention(world, *arrays(world.rank), **options)
        readable(caught.value, word)
        return True
    assert World.local(2, executor="interpreter", num_sms=4).run(main) == [True, True]
