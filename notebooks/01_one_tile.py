# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 1. One tile
#
# A GPU computes on *tiles*: small blocks of an array that fit into the shared memory of one SM. In this notebook a tile
# travels from global memory into shared memory, through registers, and back. No GPU is needed: everything runs on pknumba's
# interpreter, which also looks for races, counts bytes and predicts the time on an H200.

# %%
from pknumba.primitives import arrive, fence_async, load, ring, store, store_async, store_async_read_wait, wait
from pknumba.teaching import COLUMNS, ROWS, Drawing, Tiny, check, measure

# %% [markdown]
# ## Who carries a tile
#
# Three **roles** work at the same time. A *loader* (one thread) starts a bulk copy; a *consumer* (128 threads) computes; a
# *storer* (one thread) starts the copy back. Nobody knows threads: a role is a small function, and the template plays it on
# the right ones.

# %%
d = Drawing(760, 150, "Y = X, tile by tile")
d.box(20, 50, 90, 60, "X", "memory").box(150, 50, 90, 60, "loader", "role").box(280, 50, 90, 60, "shared\nx", "tile")
d.box(410, 50, 90, 60, "consumer", "role").box(540, 50, 90, 60, "shared\ny", "tile").box(670, 50, 80, 60, "storer\n-> Y", "role")
for x in (110, 240, 370, 500, 630):
    d.arrow(x, 80, x + 38, 80)
d

# %% [markdown]
# `Tiny` is that kernel. `check` runs it in many schedules, with the roles in every order, and compares with its definition in
# NumPy.

# %%
check(Tiny)

# %% [markdown]
# **Exercise.** Make Y = 3 X + 1. A consumer has the tile in registers, as `acc`: a register tile knows `+ - * /` with numbers.
# Replace the dots.

# %%
class Affine(Tiny):
    @staticmethod
    def consumer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_full[stage], phase)
        acc = load(s.x[stage])
        arrive(s.x_empty[stage])
        acc = acc                                   # ...
        wait(s.y_empty[stage], phase ^ 1)
        store(s.y[stage], acc)
        fence_async(s.y[stage])
        arrive(s.y_full[stage])

    @staticmethod
    def definition(X):
        return [3 * x + 1 for x in X]


check(Affine)

# %% tags=["solution"]
class AffineSolved(Affine):
    @staticmethod
    def consumer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_full[stage], phase)
        acc = load(s.x[stage])
        arrive(s.x_empty[stage])
        acc = acc * 3.0 + 1.0
        wait(s.y_empty[stage], phase ^ 1)
        store(s.y[stage], acc)
        fence_async(s.y[stage])
        arrive(s.y_full[stage])


check(AffineSolved)

# %% [markdown]
# ## Where a tile lies
#
# Coordinates are counted in tiles: `store_async(g.Y, (task.id, 0), tile)` writes tile number `task.id` of the first column. A
# task is a tile; which SM plays which task is the template's business.

# %%
d = Drawing(760, 130, "five tiles of X, and where they go in Y if the order is turned round")
for i in range(5):
    d.box(40 + 130 * i, 40, 90, 26, f"X, tile {i}", "memory", 11).box(40 + 130 * i, 95, 90, 26, f"Y, tile {i}", "done", 11)
    d.arrow(85 + 130 * i, 66, 85 + 130 * (4 - i), 93)
d

# %% [markdown]
# **Exercise.** Turn the order of the tiles round: the last tile of X becomes the first of Y. `g.tasks` is how many there are.

# %%
class Turned(Tiny):
    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.y_full[stage], phase)
        store_async(g.Y, (task.id, 0), s.y[stage])          # ...
        store_async_read_wait(0)
        arrive(s.y_empty[stage])

    @staticmethod
    def definition(X):
        return [x.reshape(-1, ROWS, COLUMNS)[::-1].reshape(x.shape) for x in X]


check(Turned)

# %% tags=["solution"]
class TurnedSolved(Turned):
    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.y_full[stage], phase)
        store_async(g.Y, (g.tasks - 1 - task.id, 0), s.y[stage])
        store_async_read_wait(0)
        arrive(s.y_empty[stage])


mark = check(TurnedSolved)
mark

# %% [markdown]
# ## The score
#
# Bytes are counted as the kernel moves them, and the time is that of an H200 by pknumba's model. Each lane below is a role;
# blue is a copy on its way, grey is waiting.

# %%
score = measure(Tiny, tiles=6)
print(score)
score.picture("six tiles on two SMs, two buffers in each ring")

# %% [markdown]
# **Exercise.** How many bytes does a kernel read for `tiles` tiles of 64 x 8 float32?

# %%
def bytes_read(tiles):
    return ...


check(bytes_read, lambda tiles: measure(Tiny, tiles=tiles).moved["own read"], 1, 3, 6)

# %% tags=["solution"]
check(lambda tiles: tiles * 64 * 8 * 4, lambda tiles: measure(Tiny, tiles=tiles).moved["own read"], 1, 3, 6)
