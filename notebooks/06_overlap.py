# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 6. Overlap: GEMM + all-reduce
#
# A tensor-parallel layer multiplies, then sums over ranks. Done one after the other, the links idle while the tensor cores
# work, and the other way round. The fused kernel sums a tile as soon as all ranks have it.

# %%
from functools import lru_cache

import numpy as np

from pknumba import GemmAllReduceConfig, all_reduce, gemm, gemm_all_reduce
from pknumba.teaching import Drawing, check, run
from pknumba.tuning import explain, predict, simulate

# %% [markdown]
# ## One after the other, or at once

# %%
d = Drawing(760, 170, "four waves of tiles: above one after the other, below overlapped")
for i in range(4):
    d.box(20 + 82 * i, 45, 80, 34, f"compute {i}", "role", 11).box(350 + 82 * i, 45, 80, 34, f"sum {i}", "peer", 11)
    d.box(20 + 92 * i, 100, 90, 28, f"compute {i}", "role", 11).box(112 + 92 * i, 130, 90, 28, f"sum {i}", "peer", 11)
d

# %%
shape = dict(m=256, n=256, k=512)
config = GemmAllReduceConfig(tile_m=64, tile_n=64, stages=4, c_stages=1, consumers=1, comm_sms=2)


def inputs(world):
    rng = np.random.default_rng(world.rank)
    A, B = (rng.integers(-2, 3, s).astype(np.float16) for s in ((shape["m"], shape["k"]), (shape["k"], shape["n"])))
    return world.asarray(A), world.asarray(B)


def apart(world):
    A, B = inputs(world)
    return all_reduce(world, gemm(world, A, B))


def fused(world):
    A, B = inputs(world)
    out = world.symmetric((shape["m"], shape["n"]), "float16")
    return gemm_all_reduce(world, A, B, out=out, config=config)


one, other = run(apart, 2, sms=8, gpu=False), run(fused, 2, sms=8)
assert (np.asarray(one.values[0]) == np.asarray(other.values[0])).all()
print("apart:", one)
print("fused:", other)

# %% [markdown]
# **Exercise.** `waves` waves of tiles, each c µs to compute and s µs to sum. Sums of a wave begin when it is computed and the
# sums before are done. How long does all of it take?

# %%
def overlapped(waves, c, s):
    return ...


def played(waves, c, s):
    computed = summed = 0
    for _ in range(waves):
        computed += c
        summed = max(summed, computed) + s
    return summed


cases = [(4, 10, 10), (4, 10, 3), (8, 3, 10), (1, 5, 5)]
check(overlapped, played, *cases)

# %% tags=["solution"]
check(lambda waves, c, s: c + (waves - 1) * max(c, s) + s, played, *cases)

# %% [markdown]
# ## The timeline
#
# Rows are roles of two ranks. Compute SMs load (blue below), multiply (green) and store; the storer signals (red) a tile's
# owner, and its communicators sum that tile while the next ones are multiplied. Of the eight communicators of an SM one is
# drawn: (+7).

# %%
few = dict(m=128, n=128, k=256)


def small(world):
    A, B = (world.asarray(np.ones(s, np.float16)) for s in ((few["m"], few["k"]), (few["k"], few["n"])))
    return gemm_all_reduce(world, A, B, out=world.symmetric((few["m"], few["n"]), "float16"), config=config.replace(comm_sms=1))


score = run(small, 2, sms=2, gpu=False)
score.picture("four tiles on two ranks, one SM that computes and one that communicates on each")

# %% [markdown]
# **Exercise.** What is not hidden is the time after the last multiplication. Read it off an SM's *events*: each has `begin` and
# `end` in nanoseconds and a `kind`, such as "wait", "copy" or "mma".

# %%
def exposed(events):
    """Nanoseconds from the end of the last multiplication to the end of the call."""
    return ...


def by_loop(events):
    last = end = 0
    for e in events:
        last = max(last, e.end) if e.kind == "mma" else last
        end = max(end, e.end)
    return end - last


check(exposed, by_loop, score.events)

# %% tags=["solution"]
check(lambda events: max(e.end for e in events) - max(e.end for e in events if e.kind == "mma"), by_loop, score.events)

# %% [markdown]
# ## How many SMs should communicate?
#
# Too few, and the sums come late; too many, and the product does. `simulate` plays a call of full size in virtual time,
# without values.
#
# **Exercise.** For 1024 x 1024 x 512 on four ranks with 16 SMs each: which of these numbers of communicating SMs is fastest?

# %%
choices = (1, 2, 4, 8)


def fastest():
    return ...


@lru_cache
def seconds(comm):
    return simulate("gemm_all_reduce", 1024, 1024, 512, 4, num_sms=16, config=GemmAllReduceConfig(comm_sms=comm)).seconds


def definition():
    return min(choices, key=seconds)


check(fastest, definition, ())

# %% tags=["solution"]
times = {comm: seconds(comm) * 1e6 for comm in choices}
check(lambda: min(times, key=times.get), definition, ())

# %%
bars = {f"{n} SMs": t for n, t in times.items()}
Drawing(700, 150, "communicating SMs of 16, 1024 x 1024 x 512 on four ranks").bars(20, 40, bars, unit="µs")

# %% [markdown]
# ## When can everything be hidden?
#
# A tile of m x n takes 2 m n K / R to multiply and s m n / B to send (R FLOP/s, B bytes per second, s bytes an element).
# Sending is hidden if multiplying takes longer.
#
# **Exercise.** From which K on? (The tile's size cancels.)

# %%
def depth(R, B, s):
    return ...


def first_depth(R, B, s):
    m = n = 128
    return next(K for K in range(1, 100000) if 2 * m * n * K / R >= s * m * n / B)


check(depth, first_depth, (989e12, 450e9, 2), (800e12, 370e9, 2))

# %% tags=["solution"]
check(lambda R, B, s: int(np.ceil(s * R / (2 * B))), first_depth, (989e12, 450e9, 2), (800e12, 370e9, 2))

# %% [markdown]
# The model says the same of a whole call, with its reasons:

# %%
shares = {f"K = {k}": 100 * predict("gemm_all_reduce", 8192, 8192, k, world=2).exposed_share for k in (512, 1024, 2048, 4096, 8192)}
d = Drawing(700, 175, "8192 x 8192 on two ranks: how much longer than the product alone")
d.bars(20, 40, shares, unit="% of the call", kind="peer")

# %%
print(explain("gemm_all_reduce", 8192, 8192, 2048, world=2))
