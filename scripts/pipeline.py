"""Arrays go in and out of an operator in one stream: CuPy normalises, all_gather_gemm multiplies, CuPy sums up; with NumPy on a laptop.

Every rank has a share of the rows of X. Each row is scaled to mean square 1 (CuPy), the ranks' shares are gathered while they are
multiplied by W (pknumba), and of the result the positive part of each row is summed (CuPy again). Nothing waits on the host: on a GPU
the script keeps the device busy first, and sees that all calls return while it still is. Exit status 1 if a result is wrong.

    python scripts/pipeline.py --world 4                # ranks in this process: NumPy and the interpreter, or CuPy and a GPU
    mpirun -n 4 python scripts/pipeline.py              # ranks as processes
"""

import argparse
import sys
import time

import numpy as np
from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world, to_numpy
from operators import FLOAT32, ROUNDING

from pknumba import all_gather_gemm, errors

EPSILON = 1e-6


def library(world):
    """The array library that works where the world works: CuPy or NumPy. Raises UnsupportedError on a GPU without CuPy."""
    if world.executor == "interpreter":
        return np
    try:
        import cupy
    except ImportError:
        raise errors.UnsupportedError("pipeline.py: CuPy is not installed. On a GPU it prepares the arrays. Install cupy-cuda13x, or use "
                                      "--executor interpreter.") from None
    return cupy


def inputs(size, m, n, k, seed):
    """(X (m, k) float32, W (k, n) float16) of all ranks."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k), np.float32) * 3, (rng.standard_normal((k, n)) / k**0.5).astype(np.float16)


def pipeline(world, xp, x, W, rows, product=all_gather_gemm):
    """One pass: x is this rank's rows. Returns the sums (rows,) float32 of all ranks' rows."""
    scale = 1 / xp.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)
    hidden = product(world, (x * scale).astype(np.float16), W, rows=rows)
    return xp.maximum(hidden, 0).sum(axis=1, dtype=np.float32)


def expected(X, W):
    """(sums, largest error that float16 can make in each) in float64."""
    u, X, W = ROUNDING["float16"], X.astype(np.float64), W.astype(np.float64)
    normal = X / np.sqrt((X * X).mean(1, keepdims=True) + EPSILON)
    hidden = normal @ W
    norms = np.outer(np.linalg.norm(normal, axis=1), np.linalg.norm(W, axis=0))
    bound = (u + 16 * FLOAT32 + (len(W) / 16 + 64) * FLOAT32) * norms                # scaling in float32, rounding, the product
    bound = (bound + u * (np.abs(hidden) + bound)).sum(1)
    value = np.maximum(hidden, 0).sum(1)
    return value, bound + W.shape[1] * FLOAT32 * (value + bound)


def run(world, args):
    """One rank's part: (largest share of the bound, seconds till the host was back, seconds till the device was, whether it was busy)."""
    xp = library(world)
    X, W = inputs(world.size, args.m, args.n, args.k, args.seed)
    x, w = world.asarray(np.array_split(X, world.size)[world.rank]), world.asarray(W)
    # CuPy compiles and loads a kernel at its first use, and loading may wait for kernels that run. Where ranks are threads on one GPU, one
    # that loads could so wait for another's kernel, which waits for this rank's: all are loaded before any operator is called.
    pipeline(world, xp, x, w, args.m, product=lambda world, a, b, rows: xp.zeros((rows, b.shape[1]), a.dtype))
    stream, big = (None, None) if xp is np else (xp.cuda.get_current_stream(), xp.ones((4096, 4096), np.float32))
    if big is not None:
        xp.matmul(big, big)
    world.synchronize()
    world.barrier()
    result = pipeline(world, xp, x, w, args.m)                                      # compiles, meets the other ranks
    world.synchronize()
    world.barrier()
    busy, start = False, time.perf_counter()
    if big is not None:
        for _ in range(args.busy):
            xp.matmul(big, big)
    for _ in range(args.iters):
        result = pipeline(world, xp, x, w, args.m)
    host = time.perf_counter() - start
    if big is not None:
        busy = not stream.done
    world.synchronize()
    device = time.perf_counter() - start
    value, bound = expected(X, W)
    share = np.max(np.abs(to_numpy(result).astype(np.float64) - value) / bound, initial=0)
    return share, host, device, busy


def main():
    """Run and judge. Returns the exit status."""
    p = Parser(prog="pipeline.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--world", type=at_least(1), help="ranks in this process, without mpirun (4)")
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    for size, usual in (("m", 300), ("n", 128), ("k", 96)):
        p.add_argument(f"--{size}", type=at_least(1), default=usual, help=f"X is m x k, W is k x n ({usual})")
    p.add_argument("--iters", type=at_least(1), default=3, help="passes (3)")
    p.add_argument("--busy", type=at_least(0), default=60, help="products that keep a GPU busy before (60)")
    p.add_argument("--seed", type=at_least(0), default=0)
    args = p.parse_args()
    world = open_world(args.world or LAUNCHED or 4, args.executor)
    with world:
        found = on_every_rank(world, run, args)
        share, host, device, idle = np.max([(s, h, d, not b) for s, h, d, b in found], axis=0)
    waited = world.executor == "gpu" and bool(idle) and args.busy > 0
    passed = bool(share <= 1) and not waited
    if FIRST:
        print(f"pipeline: {args.m} x {args.n} x {args.k}, {world.size} ranks, {world.executor}: {share:.2f} of what float16 allows; "
              f"host back after {host * 1e3:.1f} ms, device after {device * 1e3:.1f} ms"
              f"{', the host WAITED for the device' if waited else ''}: {'PASS' if passed else 'FAIL'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(guarded("pipeline.py", main))
