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
#
# Each way is a list of messages: from whom, to whom, what share of the array. What follows each other in time is a step.

# %%
def messages(way, n):
    """[(from, to, share of the array)] of all messages between n ranks."""
    all_to_all = [(a, b) for a in range(n) for b in range(n) if a != b]
    return {"one shot": [(a, b, 1) for a, b in all_to_all],                                     # 1 step
            "two shots": 2 * [(a, b, 1 / n) for a, b in all_to_all],                            # 2: pieces to owners, sums to all
            "by the root": [(a, 0, 1) for a in range(1, n)] + [(0, b, 1) for b in range(1, n)],     # 2: in, out
            "ring": 2 * (n - 1) * [(a, (a + 1) % n, 1 / n) for a in range(n)]}[way]                 # 2 (n - 1)


CORNERS = ((40, 75), (130, 75), (130, 165), (40, 165))
d = Drawing(860, 205, "four ranks: who sends to whom")
for i, (way, said) in enumerate((("one shot", "1 step of n"), ("two shots", "2 steps of n / 4"), ("by the root", "2 steps of n"),
                                 ("ring", "6 steps of n / 4"))):
    d.words(20 + 210 * i, 50, f"{way}: {said}", 12, weight="bold")
    for a, b in {(a, b) for a, b, _ in messages(way, 4)}:
        (x, y), (u, v) = CORNERS[a], CORNERS[b]
        d.arrow(*(20 + 210 * i + x + 0.24 * (u - x), y + 0.24 * (v - y)), *(20 + 210 * i + u - 0.24 * (u - x), v - 0.24 * (v - y)))
    for r, (x, y) in enumerate(CORNERS):
        d.box(20 + 210 * i + x - 17, y - 14, 34, 28, str(r), "signal" if way == "by the root" and r == 0 else "role")
d

# %% [markdown]
# **Exercise.** A link is as busy as its busiest rank. How much does the rank that gets most receive, in arrays of n numbers,
# for each way on so many ranks?

# %%
def busiest(way, ranks):
    return ...


def counted_messages(way, ranks):
    return max(sum(share for _, to, share in messages(way, ranks) if to == r) for r in range(ranks))


ways = [(way, ranks) for way in ("one shot", "two shots", "by the root", "ring") for ranks in (2, 4, 8)]
check(busiest, counted_messages, *ways)

# %% tags=["solution"]
def busiest_solved(way, ranks):
    return {"one shot": ranks - 1, "by the root": ranks - 1}.get(way, 2 * (ranks - 1) / ranks)


check(busiest_solved, counted_messages, *ways)

# %% [markdown]
# ## Few bytes and many
#
# The same on the library's kernels, whose time is predicted. (The ring is below: you write it.)

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
times, sent = {}, {}
for name, way in WAYS:
    for n in (256, 16384):
        score = run(lambda world: way(world, n), RANKS)
        assert all((np.asarray(v) == score.values[0]).all() for v in score.values)
        print(f"{name:<12} n = {n:>6}: {score.us:6.1f} µs, over links {score.to_peers:>9,} B")
        times[f"{name}, {n}"], sent[name] = score.us, score.to_peers / 1024
Drawing(720, 260, "four ranks, predicted").bars(20, 40, times, unit="µs")

# %% [markdown]
# **Exercise.** A model in one line: a way takes `steps` round trips of t seconds, and the busiest rank's bytes pass a link of B
# bytes a second. From how many bytes on are two shots (2 round trips) faster than one shot (1), on so many ranks?

# %%
def crossing(ranks, t, B):
    return ...


def searched(ranks, t, B):
    one, two = counted_messages("one shot", ranks), counted_messages("two shots", ranks)
    return next(n for n in range(0, 10**7, 8) if 2 * t + two * n / B < t + one * n / B)


def near(answer):
    def compare(*given):
        said = answer(*given)
        return said if said is ... else bool(abs(said - searched(*given)) <= 8)
    return compare


check(near(crossing), lambda *given: True, (4, 2e-6, 400e9), (8, 2e-6, 400e9))

# %% tags=["solution"]
check(near(lambda ranks, t, B: t * B / ((ranks - 1) - 2 * (ranks - 1) / ranks)), lambda *given: True, (4, 2e-6, 400e9), (8, 2e-6, 400e9))

# %% [markdown]
# ## Counting bytes

# %%
Drawing(720, 155, "four ranks, 16384 float32 each: what crosses links, all ranks together").bars(20, 40, sent, unit="KiB", kind="peer")

# %% [markdown]
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
