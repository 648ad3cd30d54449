"""Run a kernel that spreads a product over ranks on the interpreter, with toy tiles: what ``harness`` does for whole products.

Inputs, results and the memory that ranks share lie inside larger arrays full of NaN; data are small integers in float32
precision, so that every sum is exact and results are compared with ``==``.
"""

from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent

from pknumba import interpreter as cpu
from pknumba.templates.call import InterpretedCall, Matrix, Workspace

from . import harness
from .harness import schedule

SMALL = dict(tile_m=16, tile_n=32, tile_k=16, stages=3, c_stages=2, group_m=3, dtype="float32", comm_sms=1)
#: (m, n, k): whole tiles and shares; shares that end within a tile, that are smaller than one, that are empty; tails everywhere.
SHAPES = ((64, 64, 32), (63, 31, 15), (50, 33, 17), (1, 1, 1), (40, 72, 50), (130, 20, 1), (5, 40, 33), (97, 32, 40))
_TOYS = {}
__all__ = ["toy", "variants", "schedule", "run", "guarded", "Shared", "SHAPES"]


def toy(kernel, **changes):
    """A toy configuration: panels of 8 columns, one 32-byte swizzle span."""
    family = _TOYS.get(kernel.config)
    if family is None:
        small = dict(panel_n=8, c_swizzle=32, b_swizzle=32, a_swizzle=32, movers=3)
        family = _TOYS[kernel.config] = type("Toy" + kernel.config.__name__, (kernel.config,), small)
    fields = kernel.config.__dataclass_fields__
    extra = {name: value for name, value in (("piece_m", 4), ("chunk_m", 8), ("depth", 2)) if name in fields}
    if kernel.form.__name__ == "Added":
        extra["adds"] = True
    return family(**{name: value for name, value in {**SMALL, **extra, **changes}.items() if name in fields})


def variants(kernel):
    """Configurations that differ in all that a role can see."""
    return harness.variants(kernel, toy)


def guarded(shape):
    """(view of that shape, the larger array it lies in), all NaN."""
    around = np.full((shape[0] + 4, shape[1] + 16), np.nan, np.float32)
    return around[2:2 + shape[0], 8:8 + shape[1]], around


class Shared:
    """The memory that ranks share: what ``world.symmetric`` and ``world.counters`` would give."""

    def __init__(self, size):
        self.size, self.made = size, []

    def world(self, rank, sms, session):
        """The world as a rank sees it."""
        taken = iter(range(100))

        def take(make):
            number = next(taken)
            if number == len(self.made):
                self.made.append([make() for _ in range(self.size)])
            return self.made[number]

        def symmetric(shape, dtype):
            return SimpleNamespace(shape=shape, peer=lambda r, pairs=take(lambda: guarded(shape)): pairs[r][0])

        def counters(name, n):
            return SimpleNamespace(arrays=take(lambda: np.zeros(n, np.uint32)))

        return SimpleNamespace(rank=rank, size=self.size, num_sms=sms, session=session, executor="interpreter", symmetric=symmetric,
                               counters=counters)

    def untouched(self):
        """Whether what lies around each shared array is as it was."""
        pairs = [pair for made in self.made for pair in made if isinstance(pair, tuple)]
        return all(around_is_nan(*pair) for pair in pairs)


def around_is_nan(view, around):
    """Whether all but the view is still NaN."""
    inside, outside = np.isnan(view).sum(), np.isnan(around).sum()
    return outside - inside == around.size - view.size


class Rank:
    """One rank's guarded arrays."""

    def __init__(self, kernel, me, cfg, m, n, k):
        form = kernel.form
        self.a, self.a_around = guarded((form.given(m, me), k))
        self.b_memory, self.b_around = guarded((n, k) if cfg.b_transposed else (k, n))
        self.c, self.c_around = guarded(form.result(m, n, me))
        self.b = self.b_memory.T if cfg.b_transposed else self.b_memory
        numbers = form.numbers(m, n, k, cfg, me, me.num_sms)
        self.numbers = {name: numbers[name] for name in kernel.numbers}
        self.workspace = Workspace(kernel, me, cfg, form.signals(numbers, me))
        own = {form.operand: self.a, "B": self.b_memory, "out" if "out" in kernel.tensors else "C": self.c}
        self.matrices = {name: Matrix(arrays=[x if r == me.rank else None for r in range(me.size)]) for name, x in own.items()}
        memory = form.memory(me, m, n, k, cfg.dtype) or form.room(cfg, self.numbers, me)
        self.matrices.update(form.matrices(memory, m, n, me))
        self.memory, self.parts, self.apart = None, form.parts(me, m, n), form.apart(n, cfg, me)
        if self.apart:
            self.spread, self.spread_around = guarded((k, sum(self.apart[-1][1:])))
            self.matrices["B"] = Matrix(arrays=[self.spread if r == me.rank else None for r in range(me.size)])
        if kernel.shares_result():
            array = me.symmetric(form.shape(me, m, n), cfg.dtype)
            self.memory, self.matrices["C"] = array.peer(me.rank), form.shared(me, array, m, n, False)

    def poison(self):
        """What the call writes is NaN before; parts of B lie where the copy engine can begin."""
        for first, there, cols in self.apart:
            self.spread[:, there:there + cols] = self.b[:, first:first + cols]
        self.c[...] = np.nan
        if self.memory is not None:
            self.memory[...] = np.nan

    def collect(self):
        """The result, where it is made in symmetric memory, to c."""
        for (i, j), (row, col), (rows, cols) in self.parts if self.memory is not None else ():
            self.c[row:row + rows, col:col + cols] = self.memory[i:i + rows, j:j + cols]

    def untouched(self):
        """Whether everything around inputs and result is as it was."""
        return all(around_is_nan(*x) for x in ((self.a, self.a_around), (self.b_memory, self.b_around), (self.c, self.c_around)))


def values(rng, shape):
    """Small integers."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def definition(kernel, inputs):
    """What every rank gets."""
    name, size = kernel.form.__name__, len(inputs)
    if name in ("Scattered", "Added", "OwnedRows"):
        return np.array_split(sum(a @ b for a, b in inputs), size)
    if hasattr(kernel.form, "scatter"):
        shares = [np.array_split(a @ b, size, kernel.form.scatter) for a, b in inputs]
        return [np.concatenate([share[r] for share in shares], kernel.form.gather) for r in range(size)]
    if name == "Gathered":
        return [np.concatenate([a for a, _ in inputs]) @ b for _, b in inputs]
    return [sum(a @ b for a, b in inputs)] * size


def run(kernel, cfg, world=2, m=40, n=72, k=50, calls=2, sms=4, warps=3, seed=0, skew=0, **options):
    """Call ``kernel`` ``calls`` times, with new values in the same arrays and no barrier between; check every result exactly.

    Args:
        skew: how many steps another rank each time comes late.

    Returns: the session.
    """
    session, shared, wrong, ranks = cpu.Session(seed=seed, **options), Shared(world), [], {}
    rng = np.random.default_rng(seed)
    given = [kernel.form.given(m, SimpleNamespace(rank=r, size=world)) for r in range(world)]
    data = [[(values(rng, (rows, k)), values(rng, (k, n))) for rows in given] for _ in range(calls)]

    def host(rank):
        me = shared.world(rank, sms, session)
        mine = ranks[rank] = Rank(kernel, me, cfg, m, n, k)
        while len(ranks) < world:                # the barrier that follows the first call's preparations
            getcurrent().pause()
        call = InterpretedCall(kernel, me, cfg, mine.matrices, mine.numbers, mine.workspace, warps=warps)
        for number in range(calls):
            for _ in range(skew if (number + seed) % world == rank else 0):
                getcurrent().pause()
            mine.a[...], mine.b[...] = data[number][rank]
            mine.poison()
            call.fire()
            mine.collect()
            if not np.array_equal(mine.c, definition(kernel, data[number])[rank]):
                wrong.append((number, rank))

    for rank in range(world):
        session.spawn_host(rank, lambda r=rank: host(r))
    session.run()
    assert not wrong, f"wrong results of (call, rank) {wrong}"
    assert shared.untouched() and all(r.untouched() for r in ranks.values()), "touched what lies around an array"
    return session


__all__ = ["run", "toy", "variants", "schedule", "SHAPES"]
