# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 9. Mixture of experts
#
# A layer with many experts sends each token to a few of them. So a rank has products of many sizes that nobody knows
# beforehand, and tokens travel.

# %%
import numpy as np

from pknumba import all_to_all, grouped_gemm, moe_layer
from pknumba.teaching import Drawing, check, run

rng = np.random.default_rng(0)
TOKENS, WIDTH, HIDDEN, EXPERTS = 96, 64, 128, 4
x = rng.standard_normal((TOKENS, WIDTH)).astype(np.float16)
W = (rng.standard_normal((EXPERTS, WIDTH, HIDDEN)) / 8).astype(np.float16)
expert = rng.choice(EXPERTS, TOKENS, p=[0.5, 0.3, 0.2, 0.0])

# %% [markdown]
# ## Sorted by expert
#
# The tokens of an expert are put one after the other: then each expert is a matrix product over some rows. `offsets[e]` is
# where the rows of expert e end.

# %%
d = Drawing(700, 150, "tokens in the order of their experts")
for i, e in enumerate(np.sort(expert)[::6]):
    d.box(20 + 41 * i, 50, 38, 34, str(e), ("tile", "peer", "done", "role")[e])
d.words(20, 115, f"offsets {np.cumsum(np.bincount(expert, minlength=EXPERTS)).tolist()}: expert 3 has no token")
d

# %% [markdown]
# **Exercise.** From `expert` (the expert of each token): the order that sorts tokens by expert, keeping tokens of one expert
# in their order, and the offsets.

# %%
def sort(expert, experts):
    """(order (tokens,), offsets (experts,))."""
    return ...


def definition(expert, experts):
    order = [t for e in range(experts) for t in range(len(expert)) if expert[t] == e]
    return order + [sum(1 for t in expert if t <= e) for e in range(experts)]


def joined(answer):
    def flat(*given):
        found = answer(*given)
        return found if found is ... else np.concatenate(found).tolist()
    return flat


check(joined(sort), definition, (expert, EXPERTS), (np.array([1, 0, 1]), 2))

# %% tags=["solution"]
def sort_solved(expert, experts):
    return np.argsort(expert, kind="stable"), np.cumsum(np.bincount(expert, minlength=experts))


check(joined(sort_solved), definition, (expert, EXPERTS), (np.array([1, 0, 1]), 2))

# %% [markdown]
# ## One launch for all experts
#
# `grouped_gemm` multiplies the rows of each group by its own matrix. The offsets lie on the device: the host need not know
# them, and a tile ends with its group.

# %%
order, offsets = sort_solved(expert, EXPERTS)


def grouped(world):
    return grouped_gemm(world, world.asarray(x[order]), world.asarray(W), world.asarray(offsets.astype(np.int32)))


score = run(grouped, sms=3)
print(score)
score.picture("four experts, one of them without tokens, on three SMs")

# %% [markdown]
# **Exercise.** What is row i of the result, for token t = order[i]? Say it in NumPy for all rows, in float32.

# %%
def rows(x, W, expert, order):
    return ...


def kernel(x, W, expert, order):
    return np.asarray(score.values[0], np.float32).round(1)


def rounded(answer):
    def near(*given):
        found = answer(*given)
        return found if found is ... else bool(abs(np.asarray(found, np.float32) - np.asarray(score.values[0], np.float32)).max() < 0.02)
    return near


check(rounded(rows), lambda *given: True, (x, W, expert, order))

# %% tags=["solution"]
def rows_solved(x, W, expert, order):
    return np.stack([x[t].astype(np.float32) @ W[expert[t]].astype(np.float32) for t in order])


check(rounded(rows_solved), lambda *given: True, (x, W, expert, order))

# %% [markdown]
# ## Tokens travel
#
# With experts spread over ranks, every rank sends each token to the rank of its expert. That is an all-to-all with uneven
# parts: rank r sends `splits[r][p]` rows to rank p. `all_to_all` takes such splits; both sides must know how many rows come.

# %%
d = Drawing(620, 150, "an example: who sends how many rows to whom")
for i, (label, rows) in enumerate((("rank 0 sends", (40, 8)), ("rank 1 sends", (35, 13)))):
    d.words(30, 70 + 45 * i, label)
    d.row(150, 50 + 45 * i, [f"{n} rows to {p}" for p, n in enumerate(rows)], "peer", width=150)
d

# %% [markdown]
# **Exercise.** Two ranks, two experts each (rank 0 has 0 and 1). Given the experts of every rank's tokens: how many rows does
# each rank send to each?

# %%
def splits(experts_of_ranks, experts, ranks):
    """splits[r][p]: rows from r to p."""
    return ...


def counted(experts_of_ranks, experts, ranks):
    return [[sum(1 for e in mine if e * ranks // experts == p) for p in range(ranks)] for mine in experts_of_ranks]


cases = [([expert[:48], expert[48:]], EXPERTS, 2), ([[0, 1, 2, 3], [3, 3], [0], [2]], 4, 4)]
check(splits, counted, *cases)

# %% tags=["solution"]
def splits_solved(experts_of_ranks, experts, ranks):
    return [np.bincount(np.asarray(mine) * ranks // experts, minlength=ranks).tolist() for mine in experts_of_ranks]


check(splits_solved, counted, *cases)

# %% [markdown]
# ## Bytes
#
# Even parts are the simple case: here every rank sends a quarter of its tokens to each of four ranks. Count what crosses
# links.

# %%
def exchange(world):
    return all_to_all(world, world.asarray(x), scatter_axis=0, gather_axis=0)


score = run(exchange, 4, gpu=False)
print(score)
d = Drawing(620, 220, "rows from each rank to each: the diagonal stays at home")
for a in range(4):
    d.words(20, 75 + 40 * a, f"from rank {a}", 11).words(135 + 110 * a, 48, f"to rank {a}", 11)
    for b in range(4):
        d.box(110 + 110 * b, 55 + 40 * a, 100, 30, str(TOKENS // 4), "plain" if a == b else "peer", 11)
d

# %% [markdown]
# **Exercise.** How many bytes is that, for n tokens of `width` float16 numbers on each of so many ranks?

# %%
def crossing(n, width, ranks):
    return ...


def measured(n, width, ranks):
    def program(world):
        return all_to_all(world, world.asarray(np.zeros((n, width), np.float16)), scatter_axis=0, gather_axis=0)
    return run(program, ranks, gpu=False).to_peers


check(crossing, measured, (96, 64, 4), (32, 64, 2))

# %% tags=["solution"]
check(lambda n, width, ranks: ranks * (ranks - 1) * (n // ranks) * width * 2, measured, (96, 64, 4), (32, 64, 2))

# %% [markdown]
# ## The whole layer
#
# Each token goes to two experts, each with two products and an activation between them, and their results are weighted and
# added. `moe_layer` does all of it: tokens are pulled from their ranks while tiles are multiplied, and results are fetched
# and added by the second product's communicators.

# %%
d = Drawing(800, 190, "one token, two of four experts")
d.box(15, 80, 80, 40, "token", "memory").box(140, 80, 80, 40, "router", "plain")
for i, (e, w) in enumerate(((0, 0.7), (2, 0.3))):
    y = 40 + 80 * i
    d.box(300, y, 110, 40, f"expert {e}\nx @ W1[{e}]", "tile", 11).box(440, y, 60, 40, "relu", "plain", 11)
    d.box(530, y, 90, 40, f"@ W2[{e}]", "tile", 11).arrow(220, 100, 298, y + 20, f"{w}").arrow(410, y + 20, 438, y + 20)
    d.arrow(500, y + 20, 528, y + 20).arrow(620, y + 20, 688, 100)
    d.words(632, 55 + 95 * i, f"times {w}", 11)
d.arrow(95, 100, 138, 100).box(690, 80, 90, 40, "sum", "done")
d

# %% [markdown]
# **Exercise.** The definition for one token: x (width,), the experts that it goes to, and its weights; relu between the products.

# %%
W1 = (rng.standard_normal((EXPERTS, WIDTH, HIDDEN)) / 8).astype(np.float16)
W2 = (rng.standard_normal((EXPERTS, HIDDEN, WIDTH)) / 8).astype(np.float16)
indices = np.stack([rng.permutation(EXPERTS)[:2] for _ in range(TOKENS)]).astype(np.int32)
weights = rng.random((TOKENS, 2)).astype(np.float32)


def token(x, experts, weights):
    return ...


def by_slots(x, experts, weights):
    total = np.zeros(WIDTH)
    for e, w in zip(experts, weights):
        total += w * (np.maximum(x.astype(float) @ W1[e].astype(float), 0) @ W2[e].astype(float))
    return total


check(token, by_slots, *[(x[t], indices[t], weights[t]) for t in range(4)])

# %% tags=["solution"]
def token_solved(x, experts, weights):
    hidden = np.maximum(np.einsum("k,ekh->eh", x.astype(float), W1[experts].astype(float)), 0)
    return np.einsum("e,eh,ehn->n", weights, hidden, W2[experts].astype(float))


check(token_solved, by_slots, *[(x[t], indices[t], weights[t]) for t in range(4)])

# %%
def layer(world):
    mine = np.array_split(np.arange(TOKENS), world.size)[world.rank]
    experts = np.array_split(np.arange(EXPERTS), world.size)[world.rank]
    X, I, S, A, B = (world.asarray(np.ascontiguousarray(a)) for a in (x[mine], indices[mine], weights[mine], W1[experts], W2[experts]))
    return moe_layer(world, X, I, S, A, B, activation="relu", experts=EXPERTS)


score = run(layer, 2)
print(score)
found, wanted = np.concatenate(score.values).astype(float), np.stack([by_slots(*t) for t in zip(x, indices, weights)])
print("largest difference from NumPy:", round(float(abs(found - wanted).max()), 3), "in values up to", round(float(abs(wanted).max()), 1))
