"""Run a matrix kernel on the interpreter with tiles too small for wgmma, so that a run takes milliseconds.

Data are small integers in float32 precision, so every sum is exact and results are compared with ``==``. Every array lies
inside a larger one full of NaN: what is read beside it spoils the result, what is written beside it is found afterwards.
"""

from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent

from pknumba import interpreter as cpu
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.templates.call import InterpretedCall, Matrix

TOY = dict(tile_m=16, tile_n=32, tile_k=16, stages=3, c_stages=2, group_m=3, dtype="float32")
POLICIES, COMPLETIONS = ("fifo", "random", "pct", "starve"), ("eager", "random", "late")
#: (m, n, k): whole tiles; one less and one more at every edge; less than a tile; one long side; several tiles with tails.
SHAPES = ((32, 64, 32), (15, 31, 15), (17, 33, 17), (1, 1, 1), (40, 72, 50), (80, 20, 1), (5, 130, 33), (49, 32, 100))


class ToyGemm(GemmConfig):
    """GemmConfig with toy tiles: panels of 8 columns, one 32-byte swizzle span."""
    panel_n, c_swizzle, b_swizzle, a_swizzle = 8, 32, 32, 32


class ToyGemmAllReduce(GemmAllReduceConfig):
    """GemmAllReduceConfig with toy tiles."""
    panel_n, c_swizzle, b_swizzle, a_swizzle = 8, 32, 32, 32


def toy(kernel, **changes):
    """A toy configuration of that kernel."""
    family = ToyGemmAllReduce if kernel.communicates() else ToyGemm
    extra = dict(comm_sms=1, piece_m=4) if kernel.communicates() else {}
    return family(**{**TOY, **extra, **changes})


def variants(kernel):
    """Configurations that differ in all that a role can see: 1 to 3 consumers together or two in turns, both layouts of B, rings."""
    found = []
    for i, (consumers, ping_pong) in enumerate(((2, False), (2, True), (1, False), (3, False))):
        for b_transposed in (True, False):
            for stages in (2, 3, 4):
                found.append(toy(kernel, consumers=consumers, ping_pong=ping_pong, b_transposed=b_transposed, stages=stages,
                                 tile_m=24 if consumers == 3 else 16, c_stages=1 + (i + stages) % 4, group_m=1 + stages % 3))
    return found


def schedule(seed):
    """Options of the session: every policy with every way of completing, in twelve seeds."""
    return dict(seed=seed, policy=POLICIES[seed % 4], completion=COMPLETIONS[seed % 3])


def guarded(shape, margin=(2, 8)):
    """(view of that shape, the larger array it lies in), all NaN."""
    (m, n), (r, c) = shape, margin
    around = np.full((m + 2 * r, n + 2 * c), np.nan, np.float32)
    return around[r:r + m, c:c + n], around


class Rank:
    """One rank's guarded arrays and its prepared call."""

    def __init__(self, m, n, k, b_transposed):
        self.a, self.a_around = guarded((m, k))
        self.b_memory, self.b_around = guarded((n, k) if b_transposed else (k, n))
        self.c, self.c_around = guarded((m, n))
        self.b = self.b_memory.T if b_transposed else self.b_memory

    def untouched(self):
        """Whether everything around C is as it was, A and B included."""
        counts = [np.isnan(x).sum() for x in (self.a_around, self.b_around, self.c_around)]
        return counts == [x.size - y.size for x, y in ((self.a_around, self.a), (self.b_around, self.b), (self.c_around, self.c))]


def run(kernel, cfg, world=1, m=40, n=72, k=50, calls=2, sms=4, warps=3, seed=0, skew=0, **options):
    """Call ``kernel`` ``calls`` times, with new values in the same arrays and no barrier between; check every result exactly.

    Args:
        skew: how many steps another rank each time comes late.

    Returns: the session.
    """
    session = cpu.Session(seed=seed, **options)
    rng = np.random.default_rng(seed)
    data = [[tuple(rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n))) for _ in range(world)]
            for _ in range(calls)]
    ranks = [Rank(m, n, k, cfg.b_transposed) for _ in range(world)]
    grid = -(-m // cfg.tile_m), -(-n // cfg.tile_n)
    numbers = {"grid": grid, "tasks": grid[0] * grid[1], "k_tiles": -(-k // cfg.tile_k)}
    counters = {name: [np.zeros(world if name == "finished" else numbers["tasks"], np.uint32) for _ in range(world)]
                for name in kernel.all_counters()}
    wrong = []

    def host(rank):
        me = SimpleNamespace(rank=rank, size=world, num_sms=sms, session=session, executor="interpreter")
        workspace = SimpleNamespace(epoch=0, counters={name: SimpleNamespace(arrays=a) for name, a in counters.items()})
        mine = ranks[rank]
        own = {"A": mine.a, "B": mine.b_memory, "C": mine.c}
        arrays = {name: [r.c for r in ranks] if name in kernel.symmetric else [x if r == rank else None for r in range(world)]
                  for name, x in own.items()}
        call = InterpretedCall(kernel, me, cfg, {name: Matrix(arrays=x) for name, x in arrays.items()}, numbers, workspace, warps=warps)
        for number, inputs in enumerate(data):
            for _ in range(skew if (number + seed) % world == rank else 0):
                getcurrent().pause()
            mine.a[...], mine.b[...] = inputs[rank]
            mine.c[...] = np.nan
            call.fire()
            expected = sum(x @ y for x, y in inputs) if kernel.symmetric else inputs[rank][0] @ inputs[rank][1]
            if not np.array_equal(mine.c, expected):
                wrong.append((number, rank))

    for rank in range(world):
        session.spawn_host(rank, lambda r=rank: host(r))
    session.run()
    assert not wrong, f"wrong results of (call, rank) {wrong}"
    assert all(r.untouched() for r in ranks), f"touched what lies around of rank {[r.untouched() for r in ranks].index(False)}"
    return session
