"""Toy problems that are programs: kernels that need the whole of their operator (agreement, symmetric memory, copies) to be called.

Each is a function (kernel, world, rng, **changes) -> Toy with a ``main``: a few calls in a row with new numbers in the same
arrays, no barrier between, another rank late each time, results compared with ``==``.
"""

import numpy as np

from .. import interpreter as cpu
from ..templates import communicate, multiply
from .play import WrongResult
from .toys import Toy

_CALLS, _SKEW = 3, 40


def _program(kernel, data, operator, expected, sms, text):
    """The Toy.

    Args:
        data: for each call, for each rank its arrays. operator: function (world, *arrays) -> result. expected: function (arrays of
            every rank, rank) -> what that must be, or None.
    """
    def main(world):
        mine = [x.copy() for x in data[0][world.rank]]
        for number, inputs in enumerate(data):
            cpu.rest(_SKEW if number % world.size == world.rank else 0)
            for array, values in zip(mine, inputs[world.rank]):
                array[...] = values
            got, want = operator(world, *mine), expected(inputs, world.rank)
            what = f"{kernel.__name__} on {world.size} ranks, rank {world.rank}, call {number}"
            if (got is None) != (want is None) or want is not None and not np.array_equal(got, want):
                raise WrongResult(f"{what}: the result is not what the definition says. Nothing raced and nothing misused a semaphore. "
                                  "Look at coordinates, owners and the tasks that nobody plays.")
            if any((array != values).any() for array, values in zip(mine, inputs[world.rank])):
                raise WrongResult(f"{what}: an input was changed. A kernel writes its results only. Look at the windows it writes.")
    return Toy(main=main, sms=sms, text=text)


def _collective(define, **arguments):
    """The toy of a collective: ``define(every rank's x, rank, **arguments)`` of its result; arguments may be functions of the world."""
    def make(kernel, world, rng, **changes):
        cfg = kernel.config(blocks=int(rng.integers(1, 4)), warps=int(rng.integers(1, 4)), unroll=1).replace(**changes)
        shape = 2 * world, 1, int((8, 19, 152, 333)[rng.integers(4)])
        given = {k: v(world) if callable(v) else v for k, v in arguments.items()}
        data = [[(rng.integers(-5, 6, shape).astype(np.float32),) for _ in range(world)] for _ in range(_CALLS)]
        return _program(kernel, data, lambda w, x: communicate(kernel, w, x, None, cfg, None, **given),
                        lambda inputs, rank: define([x for x, in inputs], rank, **given), 4,
                        f"{shape} with blocks={cfg.blocks}, warps={cfg.warps}")
    return make


def norm(kernel, world, rng, **changes):
    """The toy of all_reduce_rmsnorm: what is compared is the sum; its norm is not exact."""
    cfg = kernel.config(blocks=int(rng.integers(1, 4)), warps=int(rng.integers(1, 4)), unroll=1).replace(
        **{"algorithm": ("one-shot", "two-shot")[rng.integers(2)], **changes})
    shape = int(rng.integers(1, 6)), int((8, 19, 152, 333)[rng.integers(4)])

    def draw(*shape):
        return rng.integers(-5, 6, shape).astype(np.float32)

    def operator(world, x, residual, weight):
        h = np.empty_like(x)
        communicate(kernel, world, x, None, cfg, None, (residual, weight, h), eps=1e-6)
        return h

    same = [(draw(*shape), draw(shape[1])) for _ in range(_CALLS)]
    data = [[(draw(*shape), residual, weight) for _ in range(world)] for residual, weight in same]
    return _program(kernel, data, operator, lambda inputs, rank: sum(x for x, *_ in inputs) + inputs[0][1], 4,
                    f"{shape} {cfg.algorithm} with blocks={cfg.blocks}, warps={cfg.warps}")


def _part(x, size, rank, axis):
    return np.split(x, size, axis)[rank]


def _fused(define, **fixed):
    """The toy of a product that is spread over ranks, with the smallest tiles that the tensor cores have. ``fixed``: of its fields."""
    def make(kernel, world, rng, **changes):
        import ml_dtypes
        turns = bool(rng.integers(2))
        fields = dict(tile_m=64, tile_n=16, tile_k=64, stages=int(rng.integers(2, 4)), c_stages=int(rng.integers(1, 3)), group_m=2,
                      consumers=2 if turns else 1, ping_pong=turns)
        usual = kernel.defaults()
        more = dict(comm_sms=1, piece_m=16, chunk_m=8, depth=int(rng.integers(1, 3)), intra_sm=turns and getattr(usual, "intra_sm", False))
        fields.update({name: value for name, value in more.items() if name in kernel.config.__dataclass_fields__})
        size = changes.pop("size", None)
        cfg = usual.replace(**{**fields, **changes})
        m, n, k = size or ((128, 32, 128), (150, 24, 64), (65, 40, 130))[rng.integers(3)]
        rows = [len(x) for x in np.array_split(np.zeros(m), world)] if define is _gathered else [m] * world
        data = [[tuple(rng.integers(-1, 2, shape).astype(ml_dtypes.bfloat16) for shape in ((r, k), (k, n))) for r in rows]
                for _ in range(_CALLS)]
        more = (m,) if define is _gathered else ()
        return _program(kernel, data, lambda w, a, b: multiply(kernel, w, a, b, None, cfg, None, *more), define, 4,
                        f"{m} x {n} x {k} with stages={cfg.stages}, c_stages={cfg.c_stages}, ping_pong={cfg.ping_pong}")
    return make


def _product(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


def _exchanged(scatter, gather):
    return lambda inputs, rank: np.concatenate([np.array_split(_product(a, b), len(inputs), scatter)[rank] for a, b in inputs], gather)


def _scattered(inputs, rank):
    total = sum(_product(a, b).astype(np.float32) for a, b in inputs).astype(inputs[0][0].dtype)
    return np.array_split(total, len(inputs))[rank]


def _gathered(inputs, rank):
    return _product(np.concatenate([a for a, _ in inputs]), inputs[rank][1])


#: Class name -> its toy.
PROGRAMS = {
    "GemmReduceScatter": _fused(_scattered),
    "AllGatherGemm": _fused(_gathered),
    "GemmReduceScatterAdd": _fused(_scattered, adds=True),
    "GemmAllToAll": _fused(_exchanged(0, 1)),
    "RowsAndRows": _fused(_exchanged(0, 0)),
    "ColumnsAndRows": _fused(_exchanged(1, 0)),
    "ColumnsAndColumns": _fused(_exchanged(1, 1)),
    "AllReduce": _collective(lambda xs, r, op: sum(xs), op="sum"),
    "AllReduceRmsNorm": norm,
    "AllGather": _collective(lambda xs, r, axis: np.concatenate(xs, axis), axis=0),
    "ReduceScatter": _collective(lambda xs, r, op, axis: _part(sum(xs), len(xs), r, axis), op="sum", axis=0),
    "AllToAll": _collective(lambda xs, r, scatter_axis, gather_axis: np.concatenate([_part(x, len(xs), r, scatter_axis) for x in xs],
                                                                                  gather_axis), scatter_axis=0, gather_axis=1),
    "Broadcast": _collective(lambda xs, r, root: xs[root], root=lambda size: size - 1),
    "Reduce": _collective(lambda xs, r, op, root: sum(xs) if r == root else None, op="sum", root=0),
    "Gather": _collective(lambda xs, r, root, axis: np.concatenate(xs, axis) if r == root else None, root=0, axis=0),
    "Scatter": _collective(lambda xs, r, root, axis: _part(xs[root], len(xs), r, axis), root=lambda size: size - 1, axis=0),
    "SendRecv": _collective(lambda xs, r, pairs: xs[(r - 1) % len(xs)], pairs=lambda size: tuple((r, (r + 1) % size) for r in range(size))),
}
