"""The operators that span nodes, on small integers whose sums are exact: every rank's result, bit for bit that of one node."""

import ml_dtypes
import numpy as np

import pknumba
from pknumba.templates.forms import share

from ..kernels.collectives import DTYPES, TOY, numbers
from ..kernels.definitions import DEFINITIONS

#: (operator, arguments, shape of x); the scattered axis is a multiple of four ranks.
CASES = [
    ("all_reduce", {}, (333,)), ("all_reduce", dict(op="max"), (3, 5)), ("all_reduce", {}, (1,)),
    ("reduce", dict(root=0), (333,)), ("reduce", dict(root=3), (8, 40)),
    ("reduce_scatter", dict(axis=0), (4, 37)), ("reduce_scatter", dict(axis=1), (3, 8, 5)),
    ("all_gather", dict(axis=0), (3, 5)), ("all_gather", dict(axis=-1), (3, 5)),
    ("broadcast", dict(root=0), (640,)), ("broadcast", dict(root=2), (333,)),
]
#: For nodes of one size only.
EXCHANGES = [("all_to_all", dict(scatter_axis=s, gather_axis=t), (4, 8, 4)) for s, t in ((0, 0), (1, 2), (2, 1), (0, 2))]


def collective(world, name, arguments, shape, dtype="bfloat16", calls=2, seed=0):
    """Call it on new inputs each time; check the result against NumPy's."""
    rng = np.random.default_rng(seed)
    for _ in range(calls):
        xs = [numbers(rng, shape, dtype) for _ in range(world.size)]
        mine, want = xs[world.rank].copy(), DEFINITIONS[name](xs, world.rank, **arguments)
        got = getattr(pknumba, name)(world, mine, config=TOY, **arguments)
        assert (got is None) == (want is None) and (want is None or np.array_equal(got, want)), (name, arguments, shape, world)
        assert np.array_equal(mine, xs[world.rank]), f"{name} wrote to its input"


def products(world, m, n, k, calls=2, seed=0):
    """gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm of one shape."""
    rng, bf16 = np.random.default_rng(seed), np.dtype(ml_dtypes.bfloat16)
    first, rows = share(m, world.size, world.rank)
    for _ in range(calls):
        As, Bs = ([rng.integers(-3, 4, shape).astype(bf16) for _ in range(world.size)] for shape in ((m, k), (k, n)))
        total = sum(A.astype("f4") @ B.astype("f4") for A, B in zip(As, Bs)).astype(bf16)
        A, B = As[world.rank], Bs[world.rank]
        assert np.array_equal(pknumba.gemm_all_reduce(world, A, B), total)
        assert np.array_equal(pknumba.gemm_reduce_scatter(world, A, B), total[first:first + rows])
        gathered = pknumba.all_gather_gemm(world, As[0][first:first + rows], B, rows=m)
        assert np.array_equal(gathered, (As[0].astype("f4") @ B.astype("f4")).astype(bf16))


def everything(world, calls=2):
    """All cases on this world; the dtypes take turns."""
    cases = CASES + (EXCHANGES if world.layout.even else [])
    for i, (name, arguments, shape) in enumerate(cases):
        collective(world, name, arguments, shape, list(DTYPES)[i % 4], calls, seed=i)
    products(world, 40, 72, 50, calls)
    products(world, 7, 16, 8, calls=1)


def once(world):
    """Every operator once."""
    for name in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", *(("all_to_all",) if world.layout.even else ())):
        collective(world, *next(case for case in CASES[::-1] + EXCHANGES if case[0] == name), calls=1)
    products(world, 40, 24, 16, calls=1)
