# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 8. Attention over a sequence that is spread over ranks
#
# Softmax needs the whole row of scores, and a long sequence does not fit on one GPU. Both problems have one answer: parts of a
# softmax can be put together.

# %%
import numpy as np

from pknumba import attention, ring_attention, ring_rows, send_recv
from pknumba.teaching import Drawing, check, run

rng = np.random.default_rng(0)


def whole(q, k, v):
    """softmax(q k^T / sqrt(width)) v, and the logarithm of the sum of the exponentials of each row; float64."""
    scores = q.astype(float) @ k.astype(float).T / np.sqrt(q.shape[1])
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    return weights @ v / weights.sum(1, keepdims=True), (top + np.log(weights.sum(1, keepdims=True)))[:, 0]


# %% [markdown]
# ## Two halves of a softmax
#
# Attention over some keys gives o and lse, the log-sum-exp of its scores. From (o, lse) of two sets of keys follows that of
# both together: each counts by its share of the sum of exponentials.

# %%
d = Drawing(700, 140, "keys in two halves")
d.box(20, 50, 120, 60, "q", "memory").box(200, 40, 170, 36, "k0, v0 -> o0, lse0", "tile")
d.box(200, 90, 170, 36, "k1, v1 -> o1, lse1", "peer")
d.box(460, 50, 160, 60, "o, lse", "done").arrow(140, 75, 198, 60).arrow(140, 85, 198, 106).arrow(370, 58, 458, 75).arrow(370, 108, 458, 88)
d

# %% [markdown]
# **Exercise.** Put two parts together, without overflow.

# %%
def merge(o0, lse0, o1, lse1):
    """(o, lse) of all keys; o: (rows, width), lse: (rows,)."""
    return ...


q, k, v = (rng.standard_normal((n, 8)) for n in (5, 12, 12))


def parts(at, far):
    """Parts of keys before and from ``at`` on; ``far`` makes the scores of the second part large."""
    return *whole(q, k[:at], v[:at]), *whole(q, k[at:] * far, v[at:])


def merged(o0, lse0, o1, lse1):
    w = np.exp(lse0 - np.logaddexp(lse0, lse1))[:, None]
    return w * o0 + (1 - w) * o1


check(lambda *p: merge(*p)[0], merged, parts(6, 1), parts(1, 1), parts(6, 1000))

# %% tags=["solution"]
def merge_solved(o0, lse0, o1, lse1):
    top = np.maximum(lse0, lse1)
    w0, w1 = np.exp(lse0 - top), np.exp(lse1 - top)
    return (w0[:, None] * o0 + w1[:, None] * o1) / (w0 + w1)[:, None], top + np.log(w0 + w1)


check(lambda *p: merge_solved(*p)[0], merged, parts(6, 1), parts(1, 1), parts(6, 1000))

# %% [markdown]
# ## The operator
#
# `attention` does that merge inside one kernel, tile of keys after tile of keys, and returns lse for whoever wants to merge
# further.

# %%
def heads(n, width=64, heads=2):
    return rng.standard_normal((1, heads, n, width)).astype(np.float16)


Q, K, V = heads(64), heads(128), heads(128)


def alone(world):
    return attention(world, *(world.asarray(x) for x in (Q, K, V)))


score = run(alone, sms=2)
O, lse = score.values[0]
print(score)
print("largest difference from NumPy:", round(float(abs(O[0, 0] - whole(Q[0, 0], K[0, 0], V[0, 0])[0]).max()), 3))
score.picture("two heads on two SMs: K and V in rings, softmax under the tensor cores")

# %% [markdown]
# **Exercise.** Attention that sees only t keys at a time and keeps no scores: after each tile of keys, merge. In NumPy, with
# `whole` for a tile.

# %%
def streamed(q, k, v, t):
    """o (rows, width)."""
    return ...


short = [(q, k, v, t) for t in (1, 4, 12)]
check(streamed, lambda q, k, v, t: whole(q, k, v)[0], *short)

# %% tags=["solution"]
def streamed_solved(q, k, v, t):
    o, lse = whole(q, k[:t], v[:t])
    for at in range(t, len(k), t):
        o, lse = merge_solved(o, lse, *whole(q, k[at:at + t], v[at:at + t]))
    return o


check(streamed_solved, lambda q, k, v, t: whole(q, k, v)[0], *short)

# %% [markdown]
# ## In a ring
#
# Each rank has its own rows of Q, K and V. Keys and values go round: in each step a rank attends to the part that it holds and
# passes it on.

# %%
d = Drawing(700, 205, "four ranks: whose keys and values a rank holds")
for step in range(4):
    d.words(12, 68 + 38 * step, f"step {step}", 11)
    for r in range(4):
        part = (r - step) % 4
        d.box(90 + 140 * r, 48 + 38 * step, 110, 30, f"rank {r}: part {part}", ("tile", "peer", "done", "role")[part], 11)
for r in range(3):
    d.arrow(200 + 140 * r, 66, 228 + 140 * r, 98)
d

# %% [markdown]
# **Exercise.** Write the ring with `attention`, `send_recv` and your `merge`.

# %%
def ring(world, q, k, v):
    """o of this rank's rows over the keys of all ranks. Arrays are (1, heads, rows, width)."""
    return ...


def spread(answer):
    def program(world):
        mine = [world.asarray(np.ascontiguousarray(np.array_split(x, world.size, axis=2)[world.rank])) for x in (K, K, V)]
        return answer(world, *mine)

    def joined(ranks):
        found = run(program, ranks, sms=2, gpu=False).values
        return ... if found[0] is ... else np.concatenate(found, axis=2).round(1)
    return joined


def definition(ranks):
    return np.stack([whole(K[0, h], K[0, h], V[0, h])[0] for h in range(2)])[None].round(1)


def close(answer):
    """Whether the answer is within 0.02 of the definition: the operator rounds to float16."""
    def compare(ranks):
        found = spread(answer)(ranks)
        return ... if found is ... else bool(abs(found - definition(ranks)).max() < 0.11)
    return compare


check(close(ring), lambda ranks: True, 2, 4)

# %% tags=["solution"]
def ring_solved(world, q, k, v):
    n = world.size
    pairs = [(r, (r + 1) % n) for r in range(n)]
    o = lse = None
    for step in range(n):
        part, total = attention(world, q, k, v)
        part, total = np.asarray(part, np.float64), np.asarray(total, np.float64)
        if step == 0:
            o, lse = part, total
        else:
            shape = o.shape
            o, lse = merge_solved(o.reshape(-1, shape[-1]), lse.ravel(), part.reshape(-1, shape[-1]), total.ravel())
            o, lse = o.reshape(shape), lse.reshape(shape[:-1])
        if step < n - 1:
            k, v = (send_recv(world, x, pairs=pairs) for x in (k, v))
    return o


check(close(ring_solved), lambda ranks: True, 2, 4)

# %% [markdown]
# ## Bytes
#
# Gathered first, K and V would lie on every rank as a whole. In a ring a rank holds two parts: one to work on, one that comes.

# %%
held = {f"{n} ranks, {what}": share for n in (2, 4, 8) for what, share in (("gathered", 100.0), ("ring", 200.0 / n))}
Drawing(720, 210, "memory for K and V on each rank, in % of all of K and V").bars(40, 40, held, unit="%", kind="memory")

# %% [markdown]
# **Exercise.** K and V have n bytes each over all ranks. How many bytes does each rank send in the whole ring?

# %%
def sent(n, ranks):
    return ...


def by_steps(n, ranks):
    return sum(2 * n // ranks for step in range(ranks - 1))


check(sent, by_steps, (4096, 2), (4096, 4), (8192, 8))

# %% tags=["solution"]
check(lambda n, ranks: 2 * n * (ranks - 1) // ranks, by_steps, (4096, 2), (4096, 4), (8192, 8))

# %% [markdown]
# ## In one launch
#
# `ring_attention` is the same in one kernel: the next part of K and V is on its way while tensor cores work on this one.

# %%
def library(world):
    mine = [world.asarray(np.ascontiguousarray(np.array_split(x, world.size, axis=2)[world.rank])) for x in (K, K, V)]
    return ring_attention(world, *mine)[0]


score = run(library, 2, sms=4)
print(score)
exact = np.stack([whole(K[0, h], K[0, h], V[0, h])[0] for h in range(2)])[None]
print("largest difference from NumPy:", round(float(abs(np.concatenate(score.values, axis=2) - exact).max()), 3))
score.picture("ring attention on two ranks")

# %% [markdown]
# With a causal mask, row i attends to rows up to i: whoever has the last rows works most. So a rank gets two pieces of twice as
# many, one from each end.
#
# **Exercise.** Which rows does rank r of n have? (`ring_rows` of pknumba is the definition; rows are a multiple of 2 n.) The
# work of a rank is then the same for all.

# %%
def mine(rows, n, r):
    return ...


def definition_of_rows(rows, n, r):
    return ring_rows(rows, n, r, zigzag=True)


spreads = [(48, n, r) for n in (2, 3, 4) for r in range(n)]
check(mine, definition_of_rows, *spreads)

# %% tags=["solution"]
def mine_solved(rows, n, r):
    pieces = np.arange(rows).reshape(2 * n, -1)
    return np.concatenate([pieces[r], pieces[2 * n - 1 - r]])


print("rows attended to:", *(int((mine_solved(48, 4, r) + 1).sum()) for r in range(4)))
check(mine_solved, definition_of_rows, *spreads)
