"""Toy problems: small instances of a kernel, with its definition in NumPy, that a checker can run hundreds of times.

A kernel of your own gets one as a class method::

    @classmethod
    def toy(kernel, world, rng, **changes):     # changes: fields of the configuration that the caller fixes
        ...
        return Toy(config, inputs, expected, numbers)

A shipped kernel has it in `TOYS` or in ``programs.PROGRAMS``, by class name; what extends a kernel inherits its toy.
"""

import inspect
from dataclasses import dataclass, field

import numpy as np

from ..config import GemmAllReduceConfig, GemmConfig
from ..errors import ContractError
from ..templates import Sliced, Whole


@dataclass(frozen=True)
class Toy:
    """One small problem. Either ``config``, ``inputs``, ``expected`` and ``numbers``, or ``main``.

    Attributes:
        config: the kernel's configuration, with tiles as small as the interpreter takes (it knows no wgmma shapes).
        inputs: function (rng, rank) -> {tensor's name: array}: new values for a call, as the kernel sees the tensors. Small
            integers keep every sum exact, so that results are compared with ``==``.
        expected: function (inputs of every rank) -> for every rank {tensor's name: array}: the definition. Tensors that are no
            inputs are NaN before a call; one that is both is changed in place.
        numbers: what else ``g`` holds besides rank and world size: {"grid": (rows, columns), "tasks": 4, "k_tiles": 2}.
        sms: SMs of a rank. warps: communicator warps that play in a block; None: as many as there are.
        text: what it is, for reports.
        scratch: {tensor's name: its shape}: float32 memory of the kernel's own, which nobody fills or looks at.
        call: function (kernel, world, cfg, matrices, numbers, workspace, warps) -> object with ``fire()``; None for the
            templates' own.
        main: function (world) that every rank runs: it makes arrays, calls operators, and raises if a result is wrong.
    """

    config: object = None
    inputs: object = None
    expected: object = None
    numbers: dict = field(default_factory=dict)
    sms: int = 4
    warps: int = 3
    text: str = ""
    scratch: dict = field(default_factory=dict)
    call: object = None
    main: object = None


#: Configuration of the toys of matrix products: tiles of 16 x 32 and panels of 8 columns.
SMALL = dict(tile_m=16, tile_n=32, tile_k=16, stages=3, c_stages=2, group_m=3, dtype="float32")
#: (m, n, k): whole tiles; one less and one more at every edge; less than a tile; one long side; several tiles with tails.
SHAPES = ((32, 64, 32), (15, 31, 15), (17, 33, 17), (1, 1, 1), (40, 72, 50), (80, 20, 1), (5, 130, 33), (49, 32, 100))


class ToyGemm(GemmConfig):
    """GemmConfig with toy tiles: panels of 8 columns, one 32-byte swizzle span."""
    panel_n, c_swizzle, b_swizzle, a_swizzle = 8, 32, 32, 32


class ToyGemmAllReduce(GemmAllReduceConfig):
    """GemmAllReduceConfig with toy tiles."""
    panel_n, c_swizzle, b_swizzle, a_swizzle = 8, 32, 32, 32


def product_config(kernel, **changes):
    """A toy configuration of a kernel that multiplies matrices."""
    family = ToyGemmAllReduce if kernel.communicates() else ToyGemm
    extra = dict(comm_sms=1, piece_m=4) if kernel.communicates() else {}
    return family(**SMALL, **extra).replace(**changes)


def product(kernel, cfg, m, n, k, sms=4, warps=3):
    """The Toy of C = A @ B on every rank, or of the sum of that over ranks where C is symmetric."""
    dtype = np.float32 if cfg.dtype == "float32" else _dtype(cfg.dtype)

    def inputs(rng, rank):
        a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
        return {"A": a, "B": np.ascontiguousarray(b.T) if cfg.b_transposed else b}

    def expected(ranks):
        parts = [_multiply(x["A"], x["B"].T if cfg.b_transposed else x["B"], dtype) for x in ranks]
        total = sum(p.astype(np.float32) for p in parts).astype(dtype) if kernel.symmetric else None
        return [{"C": p if total is None else total} for p in parts]

    sliced = getattr(cfg, "slices", 1) > 1
    numbers = (Sliced if sliced else Whole).numbers(m, n, k, cfg, None, sms)
    return Toy(cfg, inputs, expected, numbers, sms, warps, f"{m} x {n} x {k} with {_differences(cfg)}",
               {"sums": (numbers["tasks"] * cfg.tile_m, cfg.tile_n)} if sliced else {})


def _multiply(a, b, dtype):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)


def _dtype(name):
    import ml_dtypes
    return np.dtype(getattr(ml_dtypes, name, name))


def _differences(cfg):
    keys = ("consumers", "ping_pong", "cluster", "slices", "stages", "c_stages", "tile_m", "comm_sms", "piece_m", "b_transposed", "dtype")
    return ", ".join(f"{k}={getattr(cfg, k)}" for k in keys if hasattr(cfg, k))


def gemm(kernel, world, rng, **changes):
    """A random shape and configuration of a product: short main loops and long, rings of all depths, consumers together or in turns."""
    size = changes.pop("size", None)
    consumers, ping_pong = ((2, False), (2, True), (1, False), (3, False))[rng.integers(4)]
    fields = dict(consumers=consumers, ping_pong=bool(ping_pong), b_transposed=bool(rng.integers(2)), stages=int(rng.integers(2, 5)),
                  tile_m=24 if consumers == 3 else 16, c_stages=int(rng.integers(1, 5)), group_m=int(rng.integers(1, 4)))
    if not kernel.communicates() and _knows_clusters(kernel) and rng.integers(3) == 0:
        fields.update(cluster=2, group_m=2 * fields["group_m"])
    if kernel.communicates():
        fields.update(comm_sms=int(rng.integers(1, 3)), piece_m=int((1, 2, 4, 8)[rng.integers(4)]))
    cfg = product_config(kernel, **{**fields, **changes})
    m, n, k = size or SHAPES[rng.integers(len(SHAPES))]
    if not size and rng.integers(2):             # several tiles for every SM, main loops of one to three steps
        m, n, k = 4 * cfg.tile_m, 3 * cfg.tile_n, cfg.tile_k * int(rng.integers(1, 4))
    sms = int(rng.integers(2, 5)) + (cfg.comm_sms if kernel.communicates() else 0)
    return product(kernel, cfg, m, n, k, sms=sms, warps=int(rng.integers(1, 5)))


def _knows_clusters(kernel):
    """Whether it declares semaphores of clusters: a class that extends a product may have a ring of its own."""
    return any(getattr(decl, "of", "") == "cluster" for decl in kernel.shared(product_config(kernel)))


#: Class name -> function (kernel, world, rng, **changes) -> Toy.
TOYS = {"Gemm": gemm, "GemmAllReduce": gemm}


def toy_of(kernel):
    """function (world, rng, **changes) -> Toy: the kernel's own ``toy``, or that of the nearest class it extends. A function
    main(world) is its own.

    Raises ContractError if there is none.
    """
    if not inspect.isclass(kernel):
        return lambda world, rng, **changes: Toy(main=kernel)
    from .groups import GROUPED
    from .heads import HEADS
    from .programs import PROGRAMS
    known = {**TOYS, **GROUPED, **PROGRAMS, **HEADS}
    for cls in kernel.__mro__:
        if "toy" in vars(cls):
            return kernel.toy
        if cls.__name__ in known and cls.__module__.startswith("pknumba."):
            return lambda world, rng, **changes: known[cls.__name__](kernel, world, rng, **changes)
    raise ContractError(f"{kernel.__name__}: has no toy problem. The checker needs a small instance and its definition in NumPy. Give the "
                        "class a method toy(world, rng) that returns pknumba.checking.Toy.")
