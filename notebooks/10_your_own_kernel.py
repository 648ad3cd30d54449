# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 10. Your own kernel
#
# From a line of NumPy to machine code for an H200, without a GPU: a product whose result is clipped, summed over ranks.

# %%
from itertools import permutations
from math import factorial, prod

import numpy as np

from pknumba import Gemm, GemmAllReduce, GemmAllReduceConfig, errors, lowering
from pknumba import check as look
from pknumba.primitives import maximum, minimum
from pknumba.teaching import Drawing, check, run
from pknumba.templates import multiply

# %% [markdown]
# ## 1. The definition
#
# Begin with what it means. C = sum over ranks r of clip(A_r @ B_r, -limit, limit).

# %%
d = Drawing(760, 110, "what is new, and what is inherited")
for i, (name, kind) in enumerate((("loader\nof Gemm", "plain"), ("consumer\nYOURS", "done"), ("storer of\nGemmAllReduce", "plain"),
                                  ("communicator of\nGemmAllReduce", "plain"))):
    d.box(20 + 185 * i, 40, 170, 55, name, kind)
d

# %% [markdown]
# **Exercise.** The definition, in NumPy.

# %%
def clipped_sum(As, Bs, limit):
    return ...


def by_loops(As, Bs, limit):
    return sum(np.minimum(np.maximum(A @ B, -limit), limit) for A, B in zip(As, Bs))


rng = np.random.default_rng(0)
As, Bs = ([rng.integers(-3, 4, shape).astype(np.float32) for _ in range(2)] for shape in ((70, 40), (40, 80)))
check(clipped_sum, by_loops, (As, Bs, 8.0))

# %% tags=["solution"]
check(lambda As, Bs, limit: sum(np.clip(A @ B, -limit, limit) for A, B in zip(As, Bs)), by_loops, (As, Bs, 8.0))

# %% [markdown]
# ## 2. The role
#
# Only the consumer differs from Gemm's: between its two halves, `Gemm.product` and `Gemm.panels`, comes something new. `maximum`
# and `minimum` work on register tiles. (The limit is a constant here.)

# %%
d = Drawing(760, 100, "what the consumer does with a tile of C")
for i, (said, kind) in enumerate((("zero\naccumulator", "plain"), ("multiply,\nstep after step", "role"), ("clip:\nthe new line", "done"),
                                  ("store panels\nto shared memory", "role"), ("tell the\nstorer", "wait"))):
    d.box(15 + 150 * i, 40, 125, 45, said, kind, 11)
    if i:
        d.arrow(-10 + 150 * i, 62, 13 + 150 * i, 62)
d

# %% [markdown]
# **Exercise.** Put the new line where the dots are, and let both checks say yes: values against NumPy, and schedules.

# %%
LIMIT = 8.0


class ClippedProduct(GemmAllReduce):
    alone = None                                        # one rank plays this kernel too, and not Gemm

    @staticmethod
    def consumer(cfg, g, s, task):
        acc = Gemm.product(cfg, g, s, task)                     # the loop of notebook 3
        acc = acc                                               # ...
        Gemm.panels(cfg, g, s, task, acc)                       # to the storer, through shared memory


CONFIG = GemmAllReduceConfig(tile_n=128, comm_sms=1)


def program(kernel):
    def main(world):
        A, B = (world.asarray(x[world.rank].astype(np.float16)) for x in (As, Bs))
        return multiply(kernel, world, A, B, out=None, config=CONFIG, stream=None)
    return main


def values(kernel):
    return np.asarray(run(program(kernel), 2, gpu=False).values[0], np.float32)


check(values, lambda kernel: by_loops(As, Bs, LIMIT), ClippedProduct)

# %% tags=["solution"]
class ClippedProductSolved(ClippedProduct):
    @staticmethod
    def consumer(cfg, g, s, task):
        acc = Gemm.product(cfg, g, s, task)                     # the loop of notebook 3
        acc = minimum(maximum(acc, -8.0), 8.0)
        Gemm.panels(cfg, g, s, task, acc)                       # to the storer, through shared memory


check(values, lambda kernel: by_loops(As, Bs, LIMIT), ClippedProductSolved)

# %% [markdown]
# ## 3. Every schedule
#
# One run proves something about one order. Here are all orders of two roles with two steps each; a kernel has thousands of
# steps. `check` of pknumba tries many orders, with ranks that come late and copies that arrive late, and finds by vector clocks
# what *could* have gone wrong in those that it did not try.

# %%
orders = sorted(set(permutations("LLCC")), reverse=True)
d = Drawing(700, 52 + 28 * len(orders), "two steps of a loader (L), two of a consumer (C): every order")
for i, order in enumerate(orders):
    for j, who in enumerate(order):
        d.box(20 + 70 * j, 40 + 28 * i, 62, 22, who, "tile" if who == "L" else "role", 11)
d

# %% [markdown]
# **Exercise.** In how many orders can roles with so many steps each go? (Each keeps the order of its own steps.)

# %%
def interleavings(*steps):
    return ...


def enumerated(*steps):
    return len(set(permutations("".join(chr(65 + role) * n for role, n in enumerate(steps)))))


check(interleavings, enumerated, (2, 2), (3, 4), (1, 2, 3))

# %% tags=["solution"]
check(lambda *steps: factorial(sum(steps)) // prod(map(factorial, steps)), enumerated, (2, 2), (3, 4), (1, 2, 3))

# %%
def main(world):
    assert (np.asarray(program(ClippedProductSolved)(world), np.float32) == sum(
        np.clip(A @ B, -LIMIT, LIMIT) for A, B in zip(As[:world.size], Bs[:world.size]))).all()


print(look(main, worlds=(1, 2), seeds=4, progress=lambda line: None))

# %% [markdown]
# ## 4. Machine code
#
# The same class, compiled for sm_90a. The assembler's report is read: a spilled register or a serialised `wgmma` is an error.
# It needs no GPU.

# %%
def tried(widths):
    """{width of a tile: registers of a thread, or None if it cannot be compiled}."""
    found = {}
    for width in widths:
        try:
            cubin, record = lowering.build(ClippedProductSolved.plan(CONFIG.replace(tile_n=width)))
            found[width] = record["registers"]
            print(f"tile_n = {width}: {len(cubin):,} bytes of code, {record['registers']} registers, {record['spill']} bytes spilled")
        except errors.CompileError as error:
            found[width] = None
            print(f"tile_n = {width}: {str(error).partition(': ')[2][:60]}...")
    return found


built = tried((64, 128, 256))
bars = {f"tile_n = {width}": found for width, found in built.items() if found} | {"a thread has": 255}
Drawing(700, 130, "registers that each thread is compiled for").bars(20, 40, bars, unit="registers")

# %% [markdown]
# The roles of a kernel share what an SM has, 65,536 registers: for 384 threads at most 168 each, of which the template moves
# some from loaders to consumers.
#
# **Exercise.** Why not 256? An accumulator of 64 rows and n columns lies in the registers of 128 threads, and a thread has
# 255. How many does each need for the accumulator alone?

# %%
def registers(n):
    return ...


check(registers, lambda n: sum(1 for i in range(64 * n) if i % 128 == 0), 64, 128, 256)

# %% tags=["solution"]
check(lambda n: 64 * n // 128, lambda n: sum(1 for i in range(64 * n) if i % 128 == 0), 64, 128, 256)

# %% [markdown]
# ## 5. The score, and where to go on
#
# `python -m pknumba compile kernels.py:MyKernel` puts it into a bundle for machines without a compiler; `docs/kernels.md` says
# what belongs to it in a repository.

# %%
score = run(program(ClippedProductSolved), 2)
print(score)
score.picture("your kernel on two ranks")

# %% [markdown]
# **Exercise.** How many bytes cross links, all ranks together, for C (m, n) in float16 on so many ranks? The owner of a tile
# reads it from the others and writes the sum to them, and it moves *whole* tiles of 128 x 128.

# %%
def over_links(m, n, ranks):
    return ...


def counted(m, n, ranks):
    def main(world):
        A, B = (world.asarray(np.ones(shape, np.float16)) for shape in ((m, 32), (32, n)))
        return multiply(ClippedProductSolved, world, A, B, out=None, config=CONFIG, stream=None)
    return run(main, ranks, gpu=False).to_peers


shapes = [(128, 128, 2), (70, 200, 2), (128, 128, 3)]
check(over_links, counted, *shapes)

# %% tags=["solution"]
def over_links_solved(m, n, ranks):
    tiles = -(-m // 128) * -(-n // 128)
    return tiles * 128 * 128 * 2 * (ranks - 1) * 2


check(over_links_solved, counted, *shapes)
