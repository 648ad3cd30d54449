"""What the tiny kernels must compute: the same cases for the interpreter and for a device."""

from dataclasses import dataclass, field

import numpy as np

from . import kernels as k
from . import rank_kernels as over
from .attention import Attention, AttentionConfig, reference
from .tiny import TinyConfig, dtype_of, ints

__all__ = ["Case", "CASES"]

F32 = np.float32


@dataclass
class Case:
    """A launch and what it leaves.

    Attributes:
        expected: {tensor: array of every rank, or a list with one for each}.
        tolerance: {tensor: share of its largest value}; exact where it says nothing.
        device_only: takes long on the interpreter and says nothing new there.
    """

    name: str
    kernel: type
    cfg: TinyConfig
    arrays: dict
    expected: dict
    tolerance: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    device_only: bool = False

    def check(self, run, **more):
        found = run(self.kernel, self.cfg, **{**self.options, **more}, **self.arrays)
        for name, expected in self.expected.items():
            for rank, got in enumerate(found[name]):
                want = expected[rank] if isinstance(expected, list) else expected
                got, want = got.astype(F32), want.astype(F32)
                assert np.isfinite(got).all(), f"{name} of rank {rank} is not finite"
                worst = np.abs(got - want).max(initial=0)
                assert worst <= self.tolerance.get(name, 0) * max(1, np.abs(want).max(initial=0)), f"{name} of rank {rank}: off by {worst}"


def _through():
    for dtype in ("bfloat16", "float16", "float32"):
        for swizzle in (32, 64, 128):
            for rows, cols in ((64, 64), (128, 128)):
                x = ints((2 * rows - 5, cols), dtype, low=-100, high=101)       # the last tile is cut by the edge
                cfg = TinyConfig(dtype=dtype, swizzle=swizzle, rows=rows, cols=cols)
                yield Case(f"through {dtype} {swizzle} {rows}x{cols}", k.Through, cfg, dict(X=x, Y=np.zeros_like(x)), dict(X=x, Y=x),
                           options=dict(tasks=2), device_only=swizzle != 128)


def _twice():
    for dtype in ("bfloat16", "float32"):
        x, cfg = ints((64, 64), dtype, low=-60, high=61), TinyConfig(dtype=dtype)
        yield Case(f"twice {dtype}", k.Twice, cfg, dict(X=x, Y=np.zeros_like(x)), dict(X=x, Y=(2 * x.astype(F32)).astype(x.dtype)))


def _elsewhere_by_the_engine():
    cfg, x = TinyConfig(cols=128), ints((120, 128), "bfloat16", low=-100, high=101)
    from_row = np.zeros_like(x)
    from_row[:117] = x[3:]
    yield Case("from row", k.FromRow, cfg, dict(X=x, Y=np.zeros_like(x)), dict(Y=from_row), options=dict(tasks=2))
    for size in (1, 2, 3):
        x = [ints((120, 128), "bfloat16", r) for r in range(size)]
        zero, options = np.zeros_like(x[0]), dict(tasks=2, world=size)
        turned = [x[(r - 1) % size] for r in range(size)]
        yield Case(f"to peer {size}", over.ToPeer, cfg, dict(X=x, Y=zero), dict(Y=turned), options=options)
        total = sum(a.astype(F32) for a in x)
        yield Case(f"add to peer {size}", over.AddToPeer, cfg, dict(X=x, Y=zero), dict(Y=total.astype(zero.dtype)), options=options)


def _elements():
    for dtype in ("bfloat16", "float32"):
        cfg, x = TinyConfig(dtype=dtype), ints((64, 64), dtype)
        v, zero = x.astype(F32), np.zeros_like(x)
        r = v.sum(1, keepdims=True)
        y = (v + v) * F32(0.5) - r + r * v + 2
        y = (1 - y) + (r + 1) * -(r - v) - 2 * r
        yield Case(f"arithmetic {dtype}", k.Arithmetic, cfg, dict(X=x, Y=zero), dict(Y=(y / 4).astype(x.dtype)))
        top = v.max(1, keepdims=True)
        row, col = np.indices(v.shape)
        y = (np.minimum(np.maximum(v, 0), np.abs(top)) * F32(1.001)).astype(dtype_of("bfloat16")).astype(F32)
        y = np.maximum(np.where(col <= 3 + row, y, -np.inf), -1)
        yield Case(f"extremes {dtype}", k.Extremes, cfg, dict(X=x, Y=zero), dict(Y=y.astype(x.dtype)))
        yield Case(f"constants {dtype}", k.Constants, cfg, dict(X=x, Y=zero), dict(Y=np.full_like(x, 3.5)))


def _softmax():
    for rows, cols, consumers in ((64, 64, 1), (128, 128, 1)):
        cfg = TinyConfig(rows=rows, cols=cols, scale=0.25, consumers=consumers)
        x, before = ints((2 * rows, cols), "bfloat16", low=-20, high=21), np.zeros((2, 2 * rows), F32)
        before[1] = np.arange(2 * rows)
        v = x[:, :cols - 4].astype(F32) * F32(0.25)
        e = np.exp2(v - v.max(1, keepdims=True))
        y = np.zeros(x.shape, F32)
        y[:, :cols - 4] = e / e.sum(1, keepdims=True)
        after = np.stack([v.max(1) + np.log2(e.sum(1)) + before[1], before[1]])
        yield Case(f"softmax {rows}x{cols}", k.Softmax, cfg, dict(X=x, Y=np.zeros_like(x), R=before), dict(Y=y.astype(x.dtype), R=after),
                   tolerance=dict(Y=4e-3, R=1e-6), options=dict(tasks=2))


def _columns():
    for rows, cols, consumers, dtype in ((64, 64, 2, "bfloat16"), (128, 128, 1, "bfloat16"), (64, 64, 1, "float32")):
        cfg = TinyConfig(dtype=dtype, rows=rows, cols=cols, scale=0.25, consumers=consumers)
        x = ints((2 * consumers * rows, cols), dtype, low=-20, high=21)
        v = x.astype(F32).reshape(-1, rows, cols) * F32(0.25)
        e = np.exp2(v - v.max(1, keepdims=True))
        y = (e / e.sum(1, keepdims=True)).reshape(x.shape).astype(x.dtype)
        yield Case(f"columns {dtype} {rows}x{cols} {consumers}", k.Columns, cfg, dict(X=x, Y=np.zeros_like(x)), dict(Y=y),
                   tolerance=dict(Y=4e-3 if dtype == "bfloat16" else 1e-6), options=dict(tasks=2))


def _products():
    for kernel in (k.FromRegisters, k.FromShared):
        for dtype, rows, cols, swizzle, switch in (("bfloat16", 64, 64, 128, False), ("float16", 64, 32, 64, True),
                                                   ("bfloat16", 128, 128, 128, True), ("float16", 128, 64, 32, False),
                                                   ("bfloat16", 64, 256, 64, False)):
            x, b = ints((rows, rows), dtype, 1), ints((cols, rows) if switch else (rows, cols), dtype, 2)
            y = 2 * (x.astype(F32) @ (b.T if switch else b).astype(F32))
            cfg = TinyConfig(dtype=dtype, rows=rows, cols=cols, swizzle=swizzle, switch=switch)
            yield Case(f"{kernel.__name__} {dtype} {rows}x{cols} {swizzle}{' switched' * switch}", kernel, cfg,
                       dict(X=x, B=b, Y=np.zeros((rows, cols), x.dtype)), dict(Y=y.astype(x.dtype)))


def _attention():
    for dtype, d, kv in (("bfloat16", 64, 64), ("float16", 128, 128)):
        rng, cfg, rows = np.random.default_rng(0), AttentionConfig(dtype=dtype, d=d, kv=kv), 3 * kv
        q, keys, v = (rng.standard_normal((rows, d)).astype(dtype_of(dtype)) for _ in range(3))
        yield Case(f"attention {dtype} {d} {kv}", Attention, cfg, dict(Q=q, K=keys, V=v, O=np.zeros_like(q)),
                   dict(O=reference(q, keys, v, 0.25)), tolerance=dict(O=6e-3), options=dict(tasks=-(-rows // 128)))


def _stores():
    for kernel, function in ((k.StoreAdd, np.add), (k.StoreMin, np.minimum), (k.StoreMax, np.maximum)):
        for dtype in ("bfloat16", "float16", "float32")[:3 if kernel is k.StoreAdd else 2]:
            x, y = ints((120, 64), dtype, 1), ints((120, 64), dtype, 2)
            yield Case(f"{kernel.__name__} {dtype}", kernel, TinyConfig(dtype=dtype), dict(X=x, Y=y),
                       dict(Y=function(x.astype(F32), y.astype(F32)).astype(x.dtype)), options=dict(tasks=2))


def _workers():
    x = ints((128, 64), "bfloat16", low=-100, high=101)
    halves = np.concatenate([x[64:], x[:64]])
    yield Case("sync", k.Swap, TinyConfig(consumers=2), dict(X=x, Y=np.zeros_like(x)), dict(Y=halves))
    x = ints((64 * 7, 64), "bfloat16", low=-100, high=101)
    yield Case("turns", k.Turns, TinyConfig(consumers=2, ping_pong=True), dict(X=x, Y=np.zeros_like(x)), dict(Y=x),
               options=dict(tasks=7, num_sms=2))
    n, grid = np.arange(12) * 5 + 3, (3, 4)
    coords = [(i % 8 % 2 if i < 8 else 2, i // 2 if i < 8 else i - 8) for i in range(12)]
    rows = np.array([n // 4, n % 4, np.minimum(n, 14), n % 4 * 2 + n // 4 % 2, [16 * r + c for r, c in coords]])
    yield Case("numbers", k.Numbers, TinyConfig(), dict(R=np.zeros((5, 12 * 64), F32)), dict(R=np.repeat(rows, 64, 1)),
               options=dict(tasks=12, grid=grid))


def _over_ranks():
    for dtype, op, size in (("bfloat16", "sum", 2), ("float16", "min", 2), ("float32", "sum", 2), ("float32", "max", 3),
                            ("bfloat16", "max", 1), ("bfloat16", "sum", 4)):
        rows, cols, tasks = 16, 40, 5
        m, n = 16 * 2 * tasks - 3, 37                                           # cut by both edges
        cfg = TinyConfig(dtype=dtype, rows=rows, cols=cols, pieces=2, op=op)
        x = [ints((m, n), dtype, r) for r in range(size)]
        function = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
        total = function.reduce([a.astype(F32) for a in x]).astype(x[0].dtype)
        owner = np.arange(m) // (2 * rows) % size
        y = np.zeros_like(x[0])
        options, arrays = dict(tasks=tasks, world=size), dict(X=x, Y=y)
        own = [np.where((owner == r)[:, None], total, x[r]) for r in range(size)]
        label = f"{dtype} {op} {size}"
        yield Case(f"all_reduce {label}", over.AllReduce, cfg, arrays, dict(X=total, Y=y), options=options)
        yield Case(f"reduce {label}", over.Reduce, cfg, arrays, dict(X=own, Y=y), options=options)
        mine = [(owner == r)[:, None] for r in range(size)]
        yield Case(f"take {label}", over.Take, cfg, arrays, dict(X=[np.where(mine[r], y, x[r]) for r in range(size)],
                                                               Y=[np.where(mine[r], x[r], y) for r in range(size)]), options=options)
        if op == "sum":
            yield _elsewhere(cfg, dtype, size, tasks)
            yield Case(f"broadcast {label}", over.Broadcast, cfg, arrays, dict(X=np.choose(owner[:, None], x)), options=options)


def _elsewhere(cfg, dtype, size, tasks):
    """Windows of whole rows, so that both arrays are cut alike."""
    height, n = 2 * cfg.rows, 37
    x = [ints((height * tasks, n), dtype, r) for r in range(size)]
    total = sum(a.astype(F32) for a in x).astype(x[0].dtype).reshape(tasks, height, n)
    mine = -(-tasks // size)
    y = [np.zeros((mine, height, n), x[0].dtype) for _ in range(size)]
    for r in range(size):
        part = total[r::size]
        y[r][:len(part)] = part
    return Case(f"reduce elsewhere {dtype} {size}", over.ReduceElsewhere, cfg, dict(X=x, Y=np.zeros((mine * height, n), x[0].dtype)),
                dict(X=x, Y=[a.reshape(-1, n) for a in y]), options=dict(tasks=tasks, world=size))


def _signals():
    for size in (1, 2, 3):
        cfg = TinyConfig(rows=16, cols=32)
        x = [ints((16 * size, 32), "bfloat16", r) for r in range(size)]
        total = sum(a.astype(F32) for a in x)
        options, own = dict(tasks=size, world=size, calls=3), [total[16 * r:16 * r + 16].astype(x[0].dtype) for r in range(size)]
        yield Case(f"barrier {size}", over.Meet, cfg, dict(X=x, Y=np.zeros((16, 32), x[0].dtype)), dict(Y=own), options=options)
        yield Case(f"relay {size}", over.Relay, TinyConfig(rows=2, cols=32, pieces=8), dict(X=x, Y=x[0]),
                   dict(X=(total * size * size).astype(x[0].dtype)), options=options)


_FAMILIES = (_through, _twice, _elsewhere_by_the_engine, _elements, _softmax, _columns, _products, _attention, _stores, _workers,
             _over_ranks, _signals)
CASES = [case for family in _FAMILIES for case in family()]
