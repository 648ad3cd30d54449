"""Run one operator, check it against float64 and time it: one row per number of ranks; the exit status says PASS or FAIL.

    python scripts/run.py gemm --m 512 --n 512 --k 512
    python scripts/run.py gemm_all_reduce --world 1 2 4                 # ranks in this process
    mpirun -n 4 python scripts/run.py gemm_all_reduce --dtype float16   # ranks as MPI processes
    python scripts/run.py gemm --input A.npy B.npy --config tile_m=64 stages=2

Exit status: 0 every row passed, 1 a result is wrong or the operator failed, 2 the request cannot be carried out.
"""

import argparse
import sys
import time

import numpy as np
from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world, to_numpy
from operators import DTYPES, OPERATORS, Inputs, relative_error

from pknumba.runtime.making import ranks_as_threads
from pknumba.screen import Waiting

#: Multiplications of a float64 reference that a laptop does in about ten seconds; beyond it, rows are sampled.
AFFORDABLE, SAMPLE = 2**36, 256
COLUMNS = "{:<16} {:>6} {:>6} {:>6} {:<9} {:>5} {:<11} {:>10} {:>9} {:>12} {:>8}  {}"


def field(text):
    """Parser of key=value; a value that reads as an integer is one, true and false are."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier() or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key, int(value) if value.lstrip("-").isdigit() else {"true": True, "false": False}.get(value.lower(), value)


def parse(argv=None):
    """Command line -> arguments, of which ``arrays`` holds the files' contents or None."""
    p = Parser(prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("op", choices=sorted(OPERATORS), metavar="OP", help=", ".join(sorted(OPERATORS)))
    for size in "mnk":
        p.add_argument(f"--{size}", type=at_least(0), help="A is m x k, B is k x n (256)")
    p.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    p.add_argument("--world", type=at_least(1), nargs="+", metavar="N",
                   help="numbers of ranks, a row each: in this process, or as many of mpirun's ranks (all)")
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    p.add_argument("--seed", type=at_least(0), default=0, help="of the data, and of the interpreter's schedule")
    p.add_argument("--iters", type=at_least(1), default=1, help="calls to time; on a GPU one more warms up")
    p.add_argument("--config", type=field, nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    p.add_argument("--input", nargs="+", metavar="FILE",
                   help="A and B: one .npz that holds both, or two .npy. Three dimensions: a matrix per rank")
    args = p.parse_args(argv)
    args.arrays = None
    if args.input:
        if not args.m is args.n is args.k is None:
            p.error("--input brings its own shapes: leave out --m, --n and --k")
        try:
            args.arrays = load(args.input, DTYPES[args.dtype])
        except (OSError, ValueError, KeyError, EOFError) as problem:
            p.error(f"--input {' '.join(args.input)}: {problem}".rstrip("."))
        args.m, args.k, args.n = *args.arrays[0].shape[-2:], args.arrays[1].shape[-1]
    args.m, args.n, args.k = (256 if size is None else size for size in (args.m, args.n, args.k))
    args.world = args.world or [LAUNCHED or 1]
    if LAUNCHED and max(args.world) > LAUNCHED:
        p.error(f"--world {max(args.world)} asks for more ranks than the {LAUNCHED} that mpirun started")
    for size in args.world:
        for array in args.arrays or ():
            if array.ndim == 3 and len(array) != size:
                p.error(f"--input: an array holds matrices for {len(array)} ranks, not for {size}")
    return args


def load(files, dtype):
    """(A, B) from one .npz or two .npy files, as arrays of two or three dimensions in dtype. Raises ValueError for others."""
    if len(files) == 1 and files[0].endswith(".npz"):
        with np.load(files[0], allow_pickle=False) as held:
            arrays = [held["A"], held["B"]]
    elif len(files) == 2 and all(f.endswith(".npy") for f in files):
        arrays = [np.load(f, allow_pickle=False) for f in files]
    else:
        raise ValueError("one .npz file with arrays A and B is needed, or two .npy files")
    for i, array in enumerate(arrays):
        if array.dtype.kind == "V" and array.itemsize == 2:          # how NumPy stores bfloat16
            array = array.view(DTYPES["bfloat16"])
        elif array.dtype.kind not in "fiub":
            raise ValueError(f"{'AB'[i]} has dtype {array.dtype}; real numbers are needed")
        if array.ndim not in (2, 3):
            raise ValueError(f"{'AB'[i]} has {array.ndim} dimensions; 2, or 3 with the ranks first, are needed")
        arrays[i] = array.astype(dtype)
    return arrays


def check(operator, inputs, rank, result, shape, dtype):
    """(relative error, largest error as a share of its bound) of a rank's result; a share above 1 or nan is wrong."""
    m, n, k = shape
    rows = operator.share(rank, inputs.size, m)
    if result.shape != (len(rows), operator.width(inputs.size, n)) or result.dtype != DTYPES[dtype]:
        return float("nan"), float("nan")
    if len(rows) * n * k * (inputs.size if operator.summed else 1) > AFFORDABLE and len(rows) > SAMPLE:
        rng = np.random.default_rng(0)
        chosen = np.unique(np.r_[0, len(rows) - 1, rng.choice(len(rows), SAMPLE - 2, replace=False)])
        result, rows = result[chosen], rows[chosen]
    value, bound = operator.expected(inputs, rank, rows, dtype)
    error = np.abs(result.astype(np.float64) - value)
    return relative_error(result, value), float(np.max(error / bound, initial=0.0))


def measure(world, args, inputs):
    """One rank's part: call, time, check. Returns (relative error, share of the bound, seconds per call), maxima over ranks."""
    operator = OPERATORS[args.op]
    inputs.nodes = [world.layout.node_of(r) for r in range(world.size)] if world.spans else inputs.nodes
    A, B = (world.asarray(x) for x in inputs(world.rank))
    config = operator.make_config(dict(args.config))
    out = world.symmetric((args.m, args.n), args.dtype) if operator.symmetric and args.m * args.n else None
    if world.executor == "gpu":                                        # compiles and loads
        operator.call(world, A, B, out, config, args.m)
    world.synchronize()
    world.barrier()
    start = time.perf_counter()
    for _ in range(args.iters):
        result = operator.call(world, A, B, out, config, args.m)
    world.synchronize()
    seconds = (time.perf_counter() - start) / args.iters
    found = check(operator, inputs, world.rank, to_numpy(result), (args.m, args.n, args.k), args.dtype)
    # max() of Python drops a nan that comes second; NumPy's keeps it.
    return np.max(world.allgather((*found, seconds)), axis=0)


def row(args, size):
    """Measure with ``size`` ranks and print the row. Returns whether it passed."""
    inputs = Inputs(OPERATORS[args.op], size, (args.m, args.n, args.k), args.dtype, args.seed, args.arrays)
    world = open_world(size, args.executor, args.seed)
    if world is None:
        return True                                                    # a rank that mpirun started beyond this row's
    with world, Waiting(f"{args.op} {args.m} x {args.n} x {args.k}, {size} ranks", FIRST):
        error, share, seconds = on_every_rank(world, measure, args, inputs)[0]
    passed = bool(share <= 1)
    if FIRST:
        speed = f"{OPERATORS[args.op].flops(args.m, args.n, args.k) / seconds / 1e12:.1f}" if world.executor == "gpu" else "-"
        shown = f"{seconds * 1e3:.3f} ms" if seconds < 10 else f"{seconds:.1f} s"
        print(COLUMNS.format(args.op, args.m, args.n, args.k, args.dtype, size, world.executor, f"{error:.2e}", f"{share:.2f}",
                             shown, speed, "PASS" if passed else "FAIL"), flush=True)
    return passed


def main():
    """Run every requested number of ranks. Returns the exit status."""
    args = parse()
    if not LAUNCHED and max(args.world) > 1 and args.executor != "interpreter":
        ranks_as_threads()                                             # though the first row's world may be of one rank
    if FIRST:
        print(COLUMNS.format("operator", "M", "N", "K", "dtype", "ranks", "executor", "rel. error", "of bound", "time/call",
                             "TFLOP/s", "result"), flush=True)
    return 0 if all([row(args, size) for size in args.world]) else 1


if __name__ == "__main__":
    sys.exit(guarded("run.py", main))
