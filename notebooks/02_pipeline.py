# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # 2. A pipeline and its semaphores
#
# The roles of notebook 1 worked at the same time because there were several buffers. Here is how they hand buffers on without
# ever waiting for the whole.

# %%
from pknumba.primitives import arrive, expect, fence_async, load, load_async, ring, store, wait
from pknumba.teaching import Drawing, Tiny, check, measure

# %% [markdown]
# ## A ring, and the parity of its laps
#
# A ring of `stages` buffers is used over and over. Use number `step` has the buffer `step % stages`, and it is in lap `step //
# stages`. A semaphore remembers only whether the lap is even or odd: its **phase**.

# %%
d = Drawing(760, 110, "nine uses of a ring of three buffers")
for step in range(9):
    d.box(20 + 80 * step, 45, 74, 46, f"step {step}\nbuffer {step % 3}, {step // 3 & 1}", "peer" if step // 3 & 1 else "tile", 11)
d

# %% [markdown]
# **Exercise.** Compute buffer and phase. (pknumba's `ring` is this function; a role that computes its phase has none to
# forget.)

# %%
def buffer_and_phase(step, stages):
    return ...


uses = [(s, n) for n in (1, 2, 3, 4) for s in range(10)]
check(buffer_and_phase, lambda step, stages: tuple(map(int, ring(step, stages))), *uses)

# %% tags=["solution"]
check(lambda step, stages: (step % stages, step // stages & 1), lambda step, stages: tuple(map(int, ring(step, stages))), *uses)

# %% [markdown]
# ## Full and empty
#
# Each buffer has two semaphores. `x_full`: the bytes have arrived. `x_empty`: everybody has read them. Whoever fills waits for
# *empty* of the lap before (`phase ^ 1`; in the first lap that passes at once), whoever reads waits for *full* of this lap.

# %%
d = Drawing(700, 120, "one buffer, handed round")
d.box(20, 45, 150, 55, "loader fills it", "role").box(500, 45, 150, 55, "consumer reads it", "role")
d.arrow(170, 60, 498, 60, "full: the bytes are there").arrow(500, 88, 172, 88, "empty: everybody has read them")
d

# %% [markdown]
# **Exercise.** This loader forgets to wait. Run the check and read what it says, then mend it.

# %%
class Hurried(Tiny):
    @staticmethod
    def loader(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        # ...
        expect(s.x_full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (task.id, 0), s.x_full[stage])


check(Hurried)

# %% tags=["solution"]
class Patient(Tiny):
    @staticmethod
    def loader(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_empty[stage], phase ^ 1)
        expect(s.x_full[stage], s.x[stage])
        load_async(s.x[stage], g.X, (task.id, 0), s.x_full[stage])


check(Patient)

# %% [markdown]
# ## Two worlds of memory
#
# Ordinary stores and the copy engine do not see each other's writes by themselves. `fence_async` makes a consumer's stores
# visible to the copy engine, *before* it says that the buffer is full.

# %%
d = Drawing(760, 175, "one buffer of y, reached in two ways")
for i, (text, kind) in enumerate((("store", "role"), ("fence_async", "signal"), ("arrive\ny_full", "wait"))):
    d.box(130 + 120 * i, 45, 100, 40, text, kind, 11)
d.words(12, 70, "consumer:").words(12, 84, "ordinary stores", 10).words(12, 145, "storer:").words(12, 159, "the copy engine", 10)
for i, (text, kind) in enumerate((("wait\ny_full", "wait"), ("store_async", "peer"))):
    d.box(490 + 120 * i, 120, 100, 40, text, kind, 11)
d.arrow(230, 65, 248, 65).arrow(350, 65, 368, 65).arrow(470, 72, 530, 118).arrow(590, 140, 608, 140)
d.words(525, 88, "both ways see the bytes", 11)
d

# %% [markdown]
# **Exercise.** Here the fence is missing. What does the interpreter say? Put it where it belongs.

# %%
class Unfenced(Tiny):
    @staticmethod
    def consumer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_full[stage], phase)
        acc = load(s.x[stage])
        arrive(s.x_empty[stage])
        wait(s.y_empty[stage], phase ^ 1)
        store(s.y[stage], acc)
        arrive(s.y_full[stage])


check(Unfenced)

# %% tags=["solution"]
class Fenced(Tiny):
    @staticmethod
    def consumer(cfg, g, s, task):
        stage, phase = ring(task.turn, cfg.stages)
        wait(s.x_full[stage], phase)
        acc = load(s.x[stage])
        arrive(s.x_empty[stage])
        wait(s.y_empty[stage], phase ^ 1)
        store(s.y[stage], acc)
        fence_async(s.y[stage])
        arrive(s.y_full[stage])


check(Fenced)

# %% [markdown]
# ## How many buffers?
#
# With one buffer the loader waits until the consumer has read it. With more, loads are on their way while others are used:
# **latency is hidden by what is in flight**.

# %%
times = {f"{stages} buffer{'s' * (stages > 1)}": measure(Tiny, stages=stages, tiles=16, sms=1).us for stages in (1, 2, 4, 8)}
Drawing(700, 150, "sixteen tiles on one SM, predicted").bars(20, 40, times, unit="µs")

# %%
measure(Tiny, stages=4, tiles=16, sms=1).picture("sixteen tiles on one SM, four buffers")

# %% [markdown]
# **Exercise.** The fewest buffers with which sixteen tiles on one SM take at most 5 % longer than with eight. (Shared memory
# is scarce: a GEMM with tiles of 128 x 256 has room for four.)

# %%
def fewest():
    return ...


def definition():
    times = {n: measure(Tiny, stages=n, tiles=16, sms=1).seconds for n in range(1, 9)}
    return min(n for n, t in times.items() if t <= 1.05 * times[8])


check(fewest, definition, ())

# %% tags=["solution"]
def fewest_solved():
    times = [measure(Tiny, stages=n, tiles=16, sms=1).us for n in range(1, 9)]
    print(*(f"{t:.1f}" for t in times), "µs")
    return next(n for n, t in enumerate(times, 1) if t <= 1.05 * times[-1])


check(fewest_solved, definition, ())
