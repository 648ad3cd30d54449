"""decode_attention on the interpreter: worlds, uneven and missing keys, repeated calls, bounds against float64, mutants, bad calls."""

import numpy as np
import pytest

from pknumba import DecodeAttentionConfig, World, decode_attention, errors, interpreter
from pknumba.checking import mutate, toys
from pknumba.checking.play import play
from pknumba.kernels import DecodeAttention
from pknumba.templates import drivers

from . import mutation
from .attending import assert_attention, definition, exact_heads, heads
from .harness import schedule
from .products import readable


def run(data, keys, seed=0, sms=6, **options):
    """For each rank what every call gave, with new values in the same arrays and another rank late each time. keys: of each rank."""
    ends = np.cumsum([0, *keys])

    def main(world):
        mine, found = slice(ends[world.rank], ends[world.rank + 1]), []
        arrays = [data[0][0][:, :, 0].copy(), *(x[:, :, mine].copy() for x in data[0][1:])]
        for number, (q, k, v) in enumerate(data):
            interpreter.rest(20 if number % world.size == world.rank else 0)
            for array, values in zip(arrays, (q[:, :, 0], k[:, :, mine], v[:, :, mine])):
                array[...] = values
            found.append(decode_attention(world, *arrays, **options))
        return found
    return World.local(len(keys), executor="interpreter", num_sms=sms, **schedule(seed)).run(main)


@pytest.mark.parametrize("batch, queries, pairs, keys, width, dtype", [
    (1, 2, 1, (200,), 64, "bfloat16"), (2, 4, 2, (500,), 128, "float16"), (1, 8, 2, (130, 70), 64, "bfloat16"),
    (2, 2, 2, (1, 0, 300), 64, "bfloat16"), (1, 8, 1, (64, 65, 63, 200), 128, "bfloat16"), (1, 100, 1, (90, 90), 64, "float16"),
    (1, 4, 2, (20,) * 8, 64, "bfloat16"), (1, 2, 1, (0, 0), 64, "bfloat16"), (1, 3, 3, (70,), 256, "bfloat16")])
def test_definition(batch, queries, pairs, keys, width, dtype):
    """Three calls: both halves of the memory of parts, and the first again. Every rank has the same bits."""
    data = [heads(np.random.default_rng(n), batch, 1, sum(keys), queries, pairs, width, dtype) for n in range(3)]
    results = run(data, keys, seed=sum(keys))
    for number, inputs in enumerate(data):
        want = definition(*inputs)
        for found in results:
            o, lse = found[number]
            assert o.shape == (batch, queries, width) and lse.shape == (batch, queries)
            assert (o == results[0][number][0]).all() and (lse == results[0][number][1]).all()
            assert_attention(o[:, :, None], lse[:, :, None], want, f"{keys}, call {number}")


@pytest.mark.parametrize("seed", range(6))
def test_exact(seed):
    """Every policy and way of completing; keys of any rank may be the ones that matter."""
    keys = ((40, 33), (20, 50, 7), (30, 1, 60, 20))[seed % 3]
    *inputs, o, lse = exact_heads(np.random.default_rng(seed), 2, 1, sum(keys), 4, 2, 64)
    cfg = DecodeAttentionConfig(kv=16, stages=2 + seed % 2, part_stages=1 + seed % 3)
    for found in run([inputs] * 4, keys, seed=seed, sms=4 + seed, scale=1.0, config=cfg):
        for got, sums in found:
            assert (got.astype(np.float32) == o[:, :, 0]).all() and np.abs(sums - lse[:, :, 0]).max() < 1e-3


def test_results_that_are_given():
    q, k, v = heads(np.random.default_rng(1), 1, 1, 40, 4, 2, 64)
    out, lse = np.empty((1, 4, 64), q.dtype), np.empty((1, 4), np.float32)

    def main(world):
        found = decode_attention(world, q[:, :, 0], k, v, out=out, lse=lse)
        assert found[0] is out and found[1] is lse
    World.local(1, executor="interpreter").run(main)
    assert_attention(out[:, :, None], lse[:, :, None], definition(q, k, v))


@pytest.mark.timeout(240)
def test_every_mutant_is_noticed():
    found = mutate(DecodeAttention, seeds=4)
    assert found and found.count >= 28, str(found)


def test_every_mutant_of_the_end_of_a_call_is_noticed():
    """No block goes on to the next call before all of this rank have read which call this is. Those of the next rank would do as well:
    they have merged what every block of this rank has made."""
    def play_mutant(kernel, number):
        world = 2 + number % 2
        toy = toys.toy_of(kernel)(world, np.random.default_rng(number))
        play(kernel, toy, world, max_switches=200_000, **schedule(number))

    alive, count = mutation.survivors(drivers, mutation.drives(DecodeAttention), play_mutant, 9, print, {"counted_blocks"})
    assert [line.split(": ")[1] for line in alive] == ["signals the next rank"]
    assert count == 4


Q, K = np.zeros((2, 4, 64), "float16"), np.zeros((2, 2, 10, 64), "float16")
#: What is wrong -> (arrays of a rank, options, error, word of its message).
BAD = {
    "several queries": (lambda r: (K, K, K), {}, errors.ShapeError, "one query"),
    "heads that do not divide": (lambda r: (Q[:, :3], K, K), {}, errors.ShapeError, "3 query heads"),
    "another batch": (lambda r: (Q, K[:1], K[:1]), {}, errors.ShapeError, "batch"),
    "ranks that differ in heads": (lambda r: (Q[:, :2 + 2 * r].copy(), K, K), {}, errors.WorldError, "q"),
    "a query with elements apart": (lambda r: (Q[:, ::2], K, K), {}, errors.LayoutError, "q"),
    "a result with elements apart": (lambda r: (Q, K, K), dict(out=np.zeros((2, 8, 64), "float16")[:, ::2]), errors.LayoutError, "out"),
    "one rank's dtype": (lambda r: (Q, K, K.astype("float32") if r else K), {}, errors.DTypeError, "float32"),
    "three consumers": (lambda r: (Q, K, K), dict(config=DecodeAttentionConfig(consumers=3)), errors.ConfigError, "consumers"),
    "no array": (lambda r: (Q, None, K), {}, errors.ContractError, "k"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    """The same kind of error on every rank, before anything is launched."""
    arrays, options, kind, word = BAD[name]

    def main(world):
        with pytest.raises(kind) as caught:
            decode_attention(world, *arrays(world.rank), **options)
        readable(caught.value, word)
        return True
    assert World.local(2, executor="interpreter", num_sms=4).run(main) == [True, True]
