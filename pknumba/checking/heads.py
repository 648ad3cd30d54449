"""Toy problems of attention: results are exact, because every query finds one or two keys equally near and no other near enough."""

import numpy as np

from .. import interpreter as cpu
from ..config import AttentionConfig, DecodeAttentionConfig, RingAttentionConfig, UlyssesAttentionConfig
from ..templates import attend, attend_decode, attend_ring, attend_ulysses, ring_rows
from .play import WrongResult
from .toys import Toy

_CALLS, _SKEW = 3, 40


class ToyAttention(AttentionConfig):
    """AttentionConfig with toy tiles: 16 queries, heads of a multiple of 16 elements in one 32-byte swizzle span."""
    part_q, step, swizzle = 16, 16, 32

    def check(self):
        """Anything goes."""


class _ToyMoving:
    """Toy tiles, and three movers in a block."""
    part_q, step, swizzle, movers, mail_rows = 16, 16, 32, 3, 8

    def check(self):
        """Anything goes."""


class ToyRing(_ToyMoving, RingAttentionConfig):
    """RingAttentionConfig with toy tiles."""


class ToyDecode(DecodeAttentionConfig):
    """DecodeAttentionConfig with toy tiles."""
    part_q, step, swizzle = 16, 16, 32

    def check(self):
        """Anything goes."""


class ToyUlysses(_ToyMoving, UlyssesAttentionConfig):
    """UlyssesAttentionConfig with toy tiles."""


def exact_heads(rng, batch, queries, keys, heads, pairs, width, dtype="bfloat16", causal=False, shift=0):
    """(q, k, v, O, lse) for scale = 1: every query finds one or two keys equally near and all others too far to matter, and values are
    small integers. So O is exact in any order of summation, and lse is 256, or that and log(2). Every query must see the first key."""
    q, k = np.zeros((batch, heads, queries, width)), np.zeros((batch, pairs, keys, width))
    v, o, lse = rng.integers(-3, 4, k.shape), np.zeros(q.shape), np.zeros(q.shape[:3])
    for b, p in np.ndindex(batch, pairs):
        names = np.full(keys, -1)                                   # which keys are near which: at most two have one name
        named = np.append(0, 1 + rng.permutation(keys - 1))[:2 * width]
        names[named] = rng.permutation(2 * width)[:len(named)] // 2
        k[b, p, named, names[named]] = 8
        for h in range(p * heads // pairs, (p + 1) * heads // pairs):
            for i in range(queries):
                seen = names[:i + shift + 1] if causal else names
                name = rng.choice(seen[seen >= 0])
                found = np.flatnonzero(seen == name)
                q[b, h, i, name], o[b, h, i], lse[b, h, i] = 32, v[b, p, found].mean(0), 256 + np.log(len(found))
    kind = cpu.dtype_of(dtype)
    return q.astype(kind), k.astype(kind), v.astype(kind), o, lse


def compare(what, o, lse, want_o, want_lse):
    """Raise WrongResult unless O is exact and lse is right."""
    if not (np.array_equal(o.astype(np.float32), want_o) and np.abs(lse - want_lse).max(initial=0) < 1e-3):
        raise WrongResult(f"{what}: the result is not what the definition says. Nothing raced and nothing misused a semaphore. Look at "
                          "coordinates, masks and the tasks that nobody plays.")


def one_rank(kernel, world, rng, **changes):
    """A random problem and configuration of attention on one rank: several tiles for every block, rings of all depths. Blocks of causal
    ones are short, so that consumers pass over some."""
    causal, pairs = bool(rng.integers(2)), int(rng.integers(1, 3))
    kv = 16 if causal else (16, 32)[rng.integers(2)]
    cfg = ToyAttention(**{**dict(consumers=int(rng.integers(1, 4)), kv=kv, stages=int(rng.integers(2, 4)),
                                 q_stages=int(rng.integers(1, 3)), dtype="float16"), **changes})
    size = int(rng.integers(1, 3)), int(rng.integers(20, 90)), int(rng.integers(1, 110)), pairs * int(rng.integers(1, 3)), pairs, 16
    data = [exact_heads(rng, *size, "float16", causal) for _ in range(_CALLS)]

    def main(world):
        arrays = [x.copy() for x in data[0][:3]]
        for number, (*inputs, o, lse) in enumerate(data):
            for array, values in zip(arrays, inputs):
                array[...] = values
            found = attend(kernel, world, *arrays, None, None, cfg, None, causal=causal, scale=1.0)
            compare(f"{kernel.__name__}, call {number}", *found, o, lse)
            if any((array != values).any() for array, values in zip(arrays, inputs)):
                raise WrongResult(f"{kernel.__name__}, call {number}: an input was changed. A kernel writes its results only. Look at the "
                                  "windows it writes.")
    return Toy(main=main, sms=2, text=f"{size} causal={causal} with consumers={cfg.consumers}, kv={cfg.kv}, stages={cfg.stages}, "
                                      f"q_stages={cfg.q_stages}")


def _spread(kernel, rng, world, heads, call, share, toy, changes):
    """A random problem of attention over a sequence that ranks share: uneven shares, several calls, another rank late each time.

    Args:
        heads: (query heads, heads of K and V). call: function (world, cfg, rows, q, k, v) -> (O, lse or None). share: function
            (rows, rank) of the rows that a rank has.
    """
    cfg = toy(**{**dict(consumers=int(rng.integers(1, 3)), kv=(16, 32)[rng.integers(2)], stages=int(rng.integers(2, 4)),
                        q_stages=int(rng.integers(1, 3)), comm_sms=1, depth=int(rng.integers(1, 4)), dtype="float16"), **changes})
    rows, causal = int(rng.integers(world, 40 * world)), bool(rng.integers(2))
    size = int(rng.integers(1, 3)), rows, rows, *heads, 16
    data = [exact_heads(rng, *size, "float16", causal) for _ in range(_CALLS)]

    def main(world):
        mine = share(rows, world.rank)
        arrays = [np.ascontiguousarray(x[:, :, mine]) for x in data[0][:3]]
        for number, (*inputs, o, lse) in enumerate(data):
            cpu.rest(_SKEW if number % world.size == world.rank else 0)
            for array, values in zip(arrays, inputs):
                array[...] = values[:, :, mine]
            found, sums = call(world, cfg, rows, causal, *arrays)
            want = lse[:, :, mine]
            compare(f"{kernel.__name__} on {world.size} ranks, rank {world.rank}, call {number}", found, want if sums is None else sums,
                    o[:, :, mine], want)
    return Toy(main=main, sms=3, text=f"{size} causal={causal} with consumers={cfg.consumers}, kv={cfg.kv}, stages={cfg.stages}, "
                                      f"q_stages={cfg.q_stages}, depth={cfg.depth}")


def ring(kernel, world, rng, **changes):
    """Keys come from all ranks in turn, in either placement."""
    zigzag, pairs = bool(rng.integers(2)), int(rng.integers(1, 3))

    def call(world, cfg, rows, causal, *arrays):
        return attend_ring(kernel, world, *arrays, None, None, cfg, None, causal=causal, zigzag=zigzag, rows=rows, scale=1.0)
    return _spread(kernel, rng, world, (pairs * int(rng.integers(1, 3)), pairs), call,
                   lambda rows, rank: ring_rows(rows, world, rank, zigzag), ToyRing, changes)


def ulysses(kernel, world, rng, **changes):
    """Rows are exchanged for heads, and back."""
    pairs = world * int(rng.integers(1, 3))

    def call(world, cfg, rows, causal, *arrays):
        return attend_ulysses(kernel, world, *arrays, None, cfg, None, causal=causal, rows=rows, scale=1.0), None
    return _spread(kernel, rng, world, (pairs * int(rng.integers(1, 3)), pairs), call,
                   lambda rows, rank: ring_rows(rows, world, rank), ToyUlysses, changes)


def decode(kernel, world, rng, **changes):
    """One query of every sequence, over keys of which ranks have any number."""
    pairs, group, batch, width = int(rng.integers(1, 3)), int(rng.integers(1, 20)), int(rng.integers(1, 3)), 16
    cfg = ToyDecode(**{**dict(kv=(16, 32)[rng.integers(2)], stages=int(rng.integers(2, 4)), part_stages=int(rng.integers(1, 4)),
                              dtype="float16"), **changes})
    ends = np.cumsum([0, *rng.integers(0, 60, world)])
    ends[1:] += 1                                                   # some rank has a key
    data = [exact_heads(rng, batch, 1, int(ends[-1]), pairs * group, pairs, width, "float16") for _ in range(_CALLS)]

    def main(world):
        mine = slice(ends[world.rank], ends[world.rank + 1])
        q, k, v = data[0][0][:, :, 0].copy(), *(x[:, :, mine].copy() for x in data[0][1:3])
        for number, (queries, keys, values, o, lse) in enumerate(data):
            cpu.rest(_SKEW if number % world.size == world.rank else 0)
            q[...], k[...], v[...] = queries[:, :, 0], keys[:, :, mine], values[:, :, mine]
            found, sums = attend_decode(kernel, world, q, k, v, None, None, cfg, None, scale=1.0)
            compare(f"{kernel.__name__} on {world.size} ranks, rank {world.rank}, call {number}", found, sums, o[:, :, 0], lse[:, :, 0])
    return Toy(main=main, sms=int(rng.integers(2, 6)), text=f"batch {batch}, {pairs} x {group} heads, keys to {ends.tolist()} with "
               f"kv={cfg.kv}, stages={cfg.stages}, part_stages={cfg.part_stages}")


#: Class name -> its toy.
HEADS = {"Attention": one_rank, "DecodeAttention": decode, "RingAttention": ring, "UlyssesAttention": ulysses}
