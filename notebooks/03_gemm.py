# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 3. GEMM
#
# The pipeline of notebook 2, with a multiplication in its middle: C = A @ B, tile by tile.

# %%
import numpy as np

from pknumba import GemmConfig, gemm
from pknumba.primitives import tile_coord
from pknumba.teaching import Drawing, check, run
from pknumba.tuning import predict

# %% [markdown]
# ## A tile of C is a row of tiles of A times a column of tiles of B

# %%
d = Drawing(700, 235, "C[1, 2] = A[1, 0] @ B[0, 2] + A[1, 1] @ B[1, 2] + ...")
for i in range(3):
    for j in range(4):
        d.box(20 + 44 * j, 50 + 44 * i, 42, 42, "", "tile" if i == 1 else "plain")
        d.box(480 + 44 * j, 50 + 44 * i, 42, 42, "", "done" if (i, j) == (1, 2) else "plain")
for i in range(4):
    for j in range(4):
        d.box(250 + 44 * j, 30 + 44 * i, 42, 42, "", "peer" if j == 2 else "plain")
d.words(95, 205, "A").words(330, 222, "B").words(555, 205, "C").words(225, 120, "@").words(450, 120, "=")
d

# %% [markdown]
# **Exercise.** In NumPy: C by tiles of t x t, where every size is a multiple of t. Only products of tiles are allowed.

# %%
def by_tiles(A, B, t):
    return ...


rng = np.random.default_rng(0)
cases = [(rng.integers(-3, 4, (2 * t, 3 * t)), rng.integers(-3, 4, (3 * t, 4 * t)), t) for t in (1, 2, 4)]
check(by_tiles, lambda A, B, t: A @ B, *cases)

# %% tags=["solution"]
def by_tiles_solved(A, B, t):
    C = np.zeros((len(A), B.shape[1]), A.dtype)
    for i in range(0, len(A), t):
        for j in range(0, B.shape[1], t):
            for k in range(0, len(B), t):
                C[i:i + t, j:j + t] += A[i:i + t, k:k + t] @ B[k:k + t, j:j + t]
    return C


check(by_tiles_solved, lambda A, B, t: A @ B, *cases)

# %% [markdown]
# ## The kernel
#
# `gemm` does the innermost loop in a pipeline: the loader brings tiles of A and B, the consumers multiply them on the tensor
# cores into an accumulator in registers, the storer brings C back while the next tile is begun. Here are its roles at work.

# %%
config = GemmConfig(tile_m=64, tile_n=64, stages=4, c_stages=1, consumers=1)


def product(world, m=128, n=128, k=256):
    rng = np.random.default_rng(1)
    A, B = (world.asarray(rng.integers(-2, 3, shape).astype(np.float16)) for shape in ((m, k), (k, n)))
    return gemm(world, A, B, config=config)


score = run(product, sms=2)
print(score)
score.picture("four tiles of C on two SMs")

# %% [markdown]
# **Exercise.** A *step* is one filled stage: a tile of A and a tile of B, each 64 deep. How many steps does the loader make for
# all of C (m, n) over depth k, if every size is a multiple of 64? Count them in the picture: what it starts is a copy.

# %%
def steps(m, n, k):
    return ...


def started(m, n, k):
    events = run(lambda world: product(world, m, n, k), sms=2, gpu=False).events
    return sum(1 for e in events if e.kind == "copy" and e.role == "loader") // 2


check(steps, started, (128, 128, 256), (64, 192, 128))

# %% tags=["solution"]
check(lambda m, n, k: (m // 64) * (n // 64) * (k // 64), started, (128, 128, 256), (64, 192, 128))

# %% [markdown]
# ## Bytes
#
# Each tile of C needs a band of A and a band of B. So tiles that are twice as large need half the bytes: that is why they are
# as large as the registers allow.

# %%
def counted(m, n, k, tile_m, tile_n):
    cfg = GemmConfig(tile_m=tile_m, tile_n=tile_n, stages=2, c_stages=1, consumers=1)
    ones = [np.ones(shape, np.float16) for shape in ((m, k), (k, n))]
    return run(lambda world: gemm(world, *(world.asarray(x) for x in ones), config=cfg), gpu=False).moved["own read"]


kilobytes = {f"{a} x {b}": counted(256, 256, 64, a, b) / 1024 for a, b in ((64, 64), (64, 128), (64, 256), (128, 128))}
Drawing(720, 155, "256 x 256 x 64: what is loaded, by the size of a tile").bars(20, 40, kilobytes, unit="KiB", kind="memory")

# %% [markdown]
# **Exercise.** How many bytes of A and B does the kernel load into shared memory for C (m, n) over depth k, in float16? All
# sizes are multiples of the tile.

# %%
def loaded(m, n, k, tile_m, tile_n):
    return ...


sizes = [(128, 128, 128, 64, 64), (128, 128, 128, 128, 64), (128, 256, 64, 64, 128)]
check(loaded, counted, *sizes)

# %% tags=["solution"]
def loaded_solved(m, n, k, tile_m, tile_n):
    return (m // tile_m) * (n // tile_n) * (tile_m + tile_n) * k * 2


check(loaded_solved, counted, *sizes)

# %% [markdown]
# ## Order
#
# SMs that work at the same time should share operands in the L2 cache. `tile_coord` walks down groups of tile rows before it
# goes on to the next column.

# %%
d = Drawing(420, 215, "the order of 24 tiles: groups of 3 rows")
for number in range(24):
    row, col = map(int, tile_coord(number, (6, 4), 3))
    d.box(20 + 80 * col, 38 + 28 * row, 76, 25, str(number), "tile" if row < 3 else "peer", 11)
d

# %% [markdown]
# **Exercise.** Which tile is number `number` of a grid of (rows, columns), walking down all rows of a group of `group` rows,
# column after column? (All groups are full here.)

# %%
def order(number, rows, columns, group):
    return ...


def pknumba_order(number, rows, columns, group):
    return tuple(map(int, tile_coord(number, (rows, columns), group)))


tiles = [(n, 6, 4, 3) for n in range(24)]
check(order, pknumba_order, *tiles)

# %% tags=["solution"]
def order_solved(number, rows, columns, group):
    first, within = divmod(number, group * columns)
    return first * group + within % group, within // group


check(order_solved, pknumba_order, *tiles)

# %% [markdown]
# ## Full size
#
# The interpreter is for schedules; for full sizes there is a model with constants that were measured. `p.bound` is what a call
# waits for.

# %%
rates = {}
for size in (256, 512, 1024, 2048, 4096, 8192):
    p = predict("gemm", size, size, size)
    rates[f"{size}^3"] = 2 * size**3 / p.seconds / 1e12
    print(f"{size}^3: {p.seconds * 1e6:8.1f} µs, {rates[f'{size}^3']:4.0f} TFLOP/s, bound by {p.bound}")
Drawing(720, 210, "predicted on an H200").bars(20, 40, rates, unit="TFLOP/s")

# %% [markdown]
# **Exercise.** If A, B and C each crossed the memory's pins once, at W bytes a second, and tensor cores did R FLOP a second:
# from which size s on would a product of s x s x s in float16 wait for the tensor cores? (That is the *least* size; what else
# a small product waits for is in the bars.)

# %%
def least(R, W):
    return ...


def first(R, W):
    return next(s for s in range(1, 10000) if 2 * s**3 / R >= 3 * s * s * 2 / W)


check(least, first, (800e12, 4.0e12), (989e12, 3.35e12))

# %% tags=["solution"]
check(lambda R, W: int(np.ceil(3 * R / W)), first, (800e12, 4.0e12), (989e12, 3.35e12))
