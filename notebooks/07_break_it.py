# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 7. Break it
#
# Delete a line of a real kernel, and read what comes out. On a GPU such a kernel may run for months; on the interpreter it
# fails at once, with the names of those who disagree.

# %%
import tempfile
from pathlib import Path

from pknumba import Gemm, GemmAllReduce
from pknumba import check as look
from pknumba.checking import mutate, pictures
from pknumba.checking.source import load
from pknumba.primitives import signal, store_async_wait
from pknumba.teaching import Drawing, Picture, check

# %% [markdown]
# ## A race
#
# GEMM + all-reduce: the storer stores a tile and signals its owner. The line between, `store_async_wait(0)`, is gone here.

# %%
d = Drawing(700, 120, "who must say what to whom")
d.box(20, 45, 170, 55, "storer\nstore_async, wait, signal", "role", 11)
d.box(480, 45, 200, 55, "communicator\nwait_until, all_reduce", "peer", 11)
d.arrow(190, 72, 478, 72, "done: the tile is written")
d

# %%
class Hasty(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        signal(g.done, task.id, task.owner)


race = look(Hasty, worlds=(2,), seeds=12, shrink_s=2, progress=print).failure
print(str(race.error).partition("\n")[0])

# %% [markdown]
# Read it from the front: **who** (rank, block, role, line), **what** (a read of which part of C), **against whom** (which
# write by whom), the rule, and what would mend it.
#
# **Exercise.** Errors carry their facts as attributes, so that no program takes a text apart. Which role read too early?

# %%
def reader(error):
    return ...


check(reader, lambda error: error.data["role"], race.error)

# %% tags=["solution"]
check(lambda error: error.role, lambda error: error.data["role"], race.error)

# %% [markdown]
# ## A deadlock
#
# Now nobody signals the first tile.

# %%
class Silent(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        if task.id > 0:
            signal(g.done, task.id, task.owner)


stuck = look(Silent, worlds=(2,), seeds=4, shrink_s=2, progress=print).failure
print(stuck.graph.text()[:900])

# %%
Picture(pictures.waits(stuck.graph, "who waits for whom"))

# %% [markdown]
# **Exercise.** Mend `Silent`: every tile is announced, once it is written.

# %%
class Loud(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        ...


check(Loud, ranks=2, seeds=4)

# %% tags=["solution"]
class LoudSolved(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        signal(g.done, task.id, task.owner)


check(LoudSolved, ranks=2, seeds=4)

# %% [markdown]
# ## Does every line matter?
#
# `mutate` deletes or bends each synchronising line in turn and lists those that nobody misses. A line that nobody misses is
# one too many, or the test is too small. This kernel has one. (Mutants are made from the file of a kernel, so it goes into
# one.)

# %%
file = Path(tempfile.mkdtemp()) / "twice.py"
file.write_text("""
from pknumba import Gemm, GemmAllReduce
from pknumba.primitives import signal, store_async_wait


class Twice(GemmAllReduce):
    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)
        store_async_wait(0)
        signal(g.done, task.id, task.owner)
""")
Twice = load(f"{file}:Twice")
found = mutate(Twice, worlds=(2,), seeds=2, progress=lambda line: None)
print(found)

# %%
d = Drawing(640, 112, "mutants of Twice")
d.bars(20, 40, {"noticed": len(found.noticed), "nobody missed": len(found.alive)}, width=380, unit="mutants", kind="signal")
d

# %% [markdown]
# **Exercise.** `found.count` mutants were made, and `found.alive` lists those that nobody noticed. What share was noticed? And
# which single line would you delete from `Twice`, so that every remaining one matters?

# %%
def share(found):
    return ...


check(share, lambda found: len(found.noticed) / found.count, found)

# %% tags=["solution"]
check(lambda found: 1 - len(found.alive) / found.count, lambda found: len(found.noticed) / found.count, found)
