# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 4. Peers and signals
#
# Several GPUs, several **ranks**. Each can write into the memory of the others, directly. The hard part is to know *when*:
# when has what I read been written, and when may what I write be overwritten?

# %%
import numpy as np

from pknumba import send_recv
from pknumba.primitives import arrive, mod, ring, signal, store_async, store_async_read_wait, store_async_wait, wait, wait_until
from pknumba.teaching import Drawing, Tiny, check, measure, run

# %% [markdown]
# ## Memory that all ranks see
#
# `world.symmetric(shape, dtype)` is collective: every rank calls it, and every rank has one such array. `.local` is its own,
# `.peer(r)` that of rank r.

# %%
d = Drawing(700, 120, "C on three ranks; rank 0 writes to rank 1")
for r in range(3):
    d.box(20 + 230 * r, 45, 200, 55, f"rank {r}\nC.local", "memory")
d.arrow(220, 72, 248, 72, colour="#b4458f")
d

# %% [markdown]
# **Exercise.** Every rank puts its number into the array of the next rank (round). What does rank r of n find? First in NumPy.

# %%
def found(r, n):
    return ...


def program(world):
    C = world.symmetric((1,), "int32")
    C.peer((world.rank + 1) % world.size)[0] = world.rank
    world.barrier()
    return int(C.local[0])


ranks = [(r, n) for n in (2, 3, 4) for r in range(n)]
check(found, lambda r, n: run(program, ranks=n, gpu=False).values[r], *ranks)

# %% tags=["solution"]
check(lambda r, n: (r - 1) % n, lambda r, n: run(program, ranks=n, gpu=False).values[r], *ranks)

# %% [markdown]
# ## Two hand-overs
#
# A kernel that shifts tiles to the next rank: the storer stores to the peer's Y (`store_async(..., peer)`). It needs two
# **signals**, each one more on a counter of another rank: *ready*, from the one who will be written to ("my Y may be
# overwritten"), and *arrived*, from the writer.

# %%
d = Drawing(700, 150, "one tile from rank 0 to rank 1")
d.box(30, 50, 150, 70, "storer of rank 0", "role").box(430, 50, 150, 70, "storer of rank 1", "role")
d.arrow(430, 65, 182, 65, "1. ready").arrow(180, 87, 428, 87, "2. the bytes").arrow(180, 112, 428, 112, "3. arrived")
d

# %% [markdown]
# `signal` *releases*: what this thread wrote before is visible to whoever sees the signal. But the copy engine's bytes are
# still on their way. Two waits exist: `store_async_read_wait` (the source has been read, it may be overwritten) and
# `store_async_wait` (the bytes are **written**).
#
# **Exercise.** This kernel is wrong in one word. The interpreter lets copies arrive late: what do you read where the bytes
# should be?

# %%
class Shift(Tiny):
    symmetric, counters = ("Y",), ("ready", "arrived")

    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        after, before = mod(g.rank + 1, g.world_size), mod(g.rank + g.world_size - 1, g.world_size)
        signal(g.ready, task.id, before)
        wait(s.y_full[stage], phase)
        wait_until(g.ready, task.id, g.epoch)
        store_async(g.Y, (task.id, 0), s.y[stage], after)
        store_async_read_wait(0)
        arrive(s.y_empty[stage])
        signal(g.arrived, task.id, after)
        wait_until(g.arrived, task.id, g.epoch)

    @staticmethod
    def definition(X):
        return np.roll(X, 1, axis=0)


check(Shift, ranks=3)

# %% tags=["solution"]
class Written(Shift):
    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        after, before = mod(g.rank + 1, g.world_size), mod(g.rank + g.world_size - 1, g.world_size)
        signal(g.ready, task.id, before)
        wait(s.y_full[stage], phase)
        wait_until(g.ready, task.id, g.epoch)
        store_async(g.Y, (task.id, 0), s.y[stage], after)
        store_async_wait(0)
        arrive(s.y_empty[stage])
        signal(g.arrived, task.id, after)
        wait_until(g.arrived, task.id, g.epoch)


check(Written, ranks=3)

# %%
score = measure(Written, ranks=2, tiles=4, sms=1)
score.picture("two ranks shift four tiles: red are signals, grey is waiting")

# %% [markdown]
# **Exercise.** Here nobody says *ready*: it works as long as all ranks go alike. Run the check, and put the two lines where
# they belong.

# %%
class Rude(Shift):
    @staticmethod
    def storer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        after = mod(g.rank + 1, g.world_size)
        wait(s.y_full[stage], phase)
        store_async(g.Y, (task.id, 0), s.y[stage], after)
        store_async_wait(0)
        arrive(s.y_empty[stage])
        signal(g.arrived, task.id, after)
        wait_until(g.arrived, task.id, g.epoch)


check(Rude, ranks=3)

# %% tags=["solution"]
check(Written, ranks=3, calls=3)

# %% [markdown]
# ## Counters only grow
#
# `wait_until(g.arrived, task.id, g.epoch)`: in call number `epoch` the counter must have reached `epoch`. Nothing is ever
# reset, so no rank can miss a signal that came early.

# %%
d = Drawing(700, 110, "a counter that two ranks signal once in each call")
for call in range(3):
    said = f"call {call + 1}: from {2 * call} to {2 * call + 2}\nwait until it is {2 * call + 2}"
    d.box(20 + 220 * call, 40, 200, 50, said, "signal", 11)
d

# %% [markdown]
# **Exercise.** A counter gets one signal from each of n ranks in each call. What must a role wait for in call number e (the
# first call is 1)?

# %%
def enough(n, e):
    return ...


check(enough, lambda n, e: sum(1 for call in range(e) for rank in range(n)), (2, 1), (4, 1), (3, 7))

# %% tags=["solution"]
check(lambda n, e: e * n, lambda n, e: sum(1 for call in range(e) for rank in range(n)), (2, 1), (4, 1), (3, 7))

# %% [markdown]
# ## In the library
#
# pknumba's templates make both hand-overs for you: a kernel that communicates by `LCSC` or `Comm` ends its call only when the
# others have finished with what it owns. `send_recv` is what we built, in its library form. Here every rank sends on what it
# got, again and again.

# %%
def library(world, calls=3):
    x = world.asarray(np.full((64, 8), world.rank, np.float32))
    for _ in range(calls):
        x = send_recv(world, x, pairs=[(r, (r + 1) % world.size) for r in range(world.size)])
    return x


score = run(library, ranks=4)
print(score)
d = Drawing(560, 200, "whose numbers a rank of four holds")
for call in range(4):
    d.words(12, 62 + 38 * call, f"after call {call}" if call else "at first", 11)
    d.row(120, 42 + 38 * call, [f"of rank {(r - call) % 4}" for r in range(4)], "memory", width=90, height=28, gap=12)
    for r in range(3 if call else 0):
        d.arrow(165 + 102 * r, 32 + 38 * call, 250 + 102 * r, 42 + 38 * call)
d

# %% [markdown]
# **Exercise.** Whose numbers does rank r of n hold after so many calls?

# %%
def held(r, n, calls):
    return ...


def played(r, n, calls):
    return int(run(lambda world: library(world, calls), ranks=n, gpu=False).values[r][0, 0])


cases = [(0, 2, 1), (0, 3, 2), (1, 3, 5), (2, 4, 3)]
check(held, played, *cases)

# %% tags=["solution"]
check(lambda r, n, calls: (r - calls) % n, played, *cases)
