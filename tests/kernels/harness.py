"""Run a matrix kernel on the interpreter with tiles too small for wgmma, so that a run takes milliseconds.

Data are small integers in float32 precision, so every sum is exact and results are compared with ``==``.
"""

from types import SimpleNamespace

import numpy as np

from pknumba import interpreter as cpu
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.templates.call import InterpretedCall, Matrix

TOY = dict(tile_m=16, tile_n=32, tile_k=16, stages=3, c_stages=2, group_m=3, dtype="float32")


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


def run(kernel, cfg, world=1, m=40, n=72, k=50, calls=2, sms=4, warps=3, seed=0, **options):
    """Call ``kernel`` ``calls`` times with new inputs on every rank, without a barrier between; check every result exactly.

    Returns: the session.
    """
    session = cpu.Session(seed=seed, **options)
    rng = np.random.default_rng(seed)
    data = [[(rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (k, n)).astype(np.float32)) for _ in range(world)]
            for _ in range(calls)]
    grid = -(-m // cfg.tile_m), -(-n // cfg.tile_n)
    numbers = {"grid": grid, "tasks": grid[0] * grid[1], "k_tiles": -(-k // cfg.tile_k)}
    shared = bool(kernel.symmetric)
    c = [np.full((m, n), np.nan, np.float32) for _ in range(world)]
    counters = {name: [np.zeros(world if name == "finished" else numbers["tasks"], np.uint32) for _ in range(world)]
                for name in kernel.all_counters()}
    wrong = []

    def host(rank):
        me = SimpleNamespace(rank=rank, size=world, num_sms=sms, session=session, executor="interpreter")
        workspace = SimpleNamespace(epoch=0, counters={name: SimpleNamespace(arrays=a) for name, a in counters.items()})
        own = [None] * world
        for call, inputs in enumerate(data):
            a, b = inputs[rank]
            arrays = dict(A=[*own], B=[*own], C=list(c) if shared else [*own])
            arrays["A"][rank], arrays["B"][rank] = a, b.T.copy() if cfg.b_transposed else b
            if not shared:
                arrays["C"][rank] = c[rank]
            matrices = {name: Matrix(arrays=x) for name, x in arrays.items()}
            InterpretedCall(kernel, me, cfg, matrices, numbers, workspace, warps=warps).fire()
            expected = sum(x @ y for x, y in inputs) if shared else a @ b
            if not np.array_equal(c[rank], expected):
                wrong.append((call, rank))

    for rank in range(world):
        session.spawn_host(rank, lambda r=rank: host(r))
    session.run()
    assert not wrong, f"wrong results of (call, rank) {wrong}"
    return session
