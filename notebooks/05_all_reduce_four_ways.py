# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 5. All-reduce, four ways
#
# Every rank has an array; every rank wants the sum. What is fastest depends on how much there is: few bytes wait for round
# trips, many for the links.

# %%
import numpy as np

from pknumba import CommConfig, all_gather, all_reduce, broadcast, reduce, reduce_scatter, send_recv
from pknumba.teaching import Drawing, check, run

RANKS = 4


def mine(world, n):
    """n numbers of this rank, in symmetric memory: no copies in and out."""
    x = world.symmetric((n,), "float32")
    x.local[...] = world.asarray(np.arange(n, dtype=np.float32) % 7 + world.rank)
    world.barrier()
    return x


# %% [markdown]
# ## One shot, two shots, by the root, in a ring

# %%
d = Drawing(760, 150, "who sends what to whom (four ranks, n numbers each)")
for i, (name, steps) in enumerate((("one shot", "all to all, n each"), ("two shots, or two calls", "owners sum n / 4,\nthen tell all"),
                                   ("by the root", "root sums all,\nall read the root"), ("ring", "6 steps of n / 4\nto the next rank"))):
    d.box(20 + 185 * i, 50, 170, 80, f"{name}\n{steps}", ("tile", "done", "peer", "role")[i])
d

# %%
def one_shot(world, n):
    return all_reduce(world, mine(world, n), config=CommConfig(algorithm="one-shot"))


def two_shots(world, n):
    return all_reduce(world, mine(world, n), config=CommConfig(algorithm="two-shot"))


def in_two_calls(world, n):
    return all_gather(world, reduce_scatter(world, mine(world, n)))


def by_the_root(world, n):
    total = reduce(world, mine(world, n), root=0)                       # None on the others
    return broadcast(world, total if world.rank == 0 else world.asarray(np.zeros(n, np.float32)), root=0)


WAYS = (("one shot", one_shot), ("two shots", two_shots), ("in two calls", in_two_calls), ("by the root", by_the_root))
times = {}
for name, way in WAYS:
    for n in (256, 16384):
        score = run(lambda world: way(world, n), RANKS)
        assert all((np.asarray(v) == score.values[0]).all() for v in score.values)
        print(f"{name:<12} n = {n:>6}: {score.us:6.1f} µs, over links {score.to_peers:>9,} B")
        times[f"{name}, {n}"] = score.us
Drawing(720, 260, "four ranks, predicted").bars(20, 40, times, unit="µs")

# %% [markdown]
# ## Counting bytes
#
# **Exercise.** How many bytes cross links, all ranks together, if every rank sends all of its n float32 numbers to each of the
# others (one shot)? And in two shots, where each owner reads its n / ranks numbers from the others and writes the sums to
# them?

# %%
def bytes_of_two_shots(n, ranks):
    return ...


def counted(n, ranks):
    return run(lambda world: two_shots(world, n), ranks, gpu=False).to_peers


check(bytes_of_two_shots, counted, (4096, 2), (4096, 4))

# %% tags=["solution"]
def bytes_of_two_shots_solved(n, ranks):
    return 2 * 4 * n * (ranks - 1)          # n / ranks numbers of 4 bytes, ranks owners, ranks - 1 others, read and written


check(bytes_of_two_shots_solved, counted, (4096, 2), (4096, 4))

# %% [markdown]
# ## The ring, by hand
#
# A classic: cut the array into as many parts as ranks. In step s every rank sends one part to the next rank, which adds its
# own. After ranks - 1 steps each part is complete somewhere; ranks - 1 more steps carry it round.
#
# **Exercise.** Write it with `send_recv` (every rank sends x to the next and gets what the one before sent). NumPy says what
# must come out.

# %%
def ring_all_reduce(world, x):
    """x: a NumPy-like array whose length is a multiple of the ranks. Returns the sum over ranks."""
    return ...


def summed(answer):
    def program(world):
        return answer(world, world.asarray(np.arange(8 * world.size, dtype=np.float32) * (world.rank + 1)))
    return lambda ranks: run(program, ranks, gpu=False).values[-1]


def definition(ranks):
    return sum(np.arange(8 * ranks, dtype=np.float32) * (r + 1) for r in range(ranks))


check(summed(ring_all_reduce), definition, 2, 3, 4)

# %% tags=["solution"]
def ring_all_reduce_solved(world, x):
    n, r = world.size, world.rank
    parts = [p.copy() for p in np.split(np.asarray(x), n)]
    pairs = [(q, (q + 1) % n) for q in range(n)]
    for s in range(n - 1):                                              # after step s, part r - s - 1 has s + 2 terms here
        got = send_recv(world, parts[(r - s) % n], pairs=pairs)
        parts[(r - s - 1) % n] += got
    for s in range(n - 1):                                              # complete parts go round
        parts[(r - s) % n] = send_recv(world, parts[(r + 1 - s) % n], pairs=pairs).copy()
    return np.concatenate(parts)


check(summed(ring_all_reduce_solved), definition, 2, 3, 4)

# %% [markdown]
# Its predicted time against the library's: each of the 2 (ranks - 1) steps is a kernel with a round trip, so with few bytes it
# loses, however evenly it loads the links.

# %%
x = np.ones(1024, np.float32)
print("ring by hand", run(lambda world: ring_all_reduce_solved(world, world.asarray(x)), RANKS, gpu=False))
print("all_reduce  ", run(lambda world: all_reduce(world, world.asarray(x)), RANKS, gpu=False))
few = CommConfig(algorithm="two-shot", warps=4, unroll=2)
run(lambda world: all_reduce(world, mine(world, 16384), config=few), 2, sms=1, gpu=False).picture(
    "two shots, two ranks, four warps each: ready (red), sums and stores to both (blue), done (red)")
