"""Find the fastest configurations of an operator on this machine's GPUs and keep them: later calls without a configuration use them.

    python scripts/tune.py gemm --shapes 4096x4096x4096 8192x1024x512 --seconds 60
    mpirun -n 2 python scripts/tune.py gemm_all_reduce --seconds 120
    python scripts/tune.py --show                     what is known, and where it is kept

The cost model proposes, the hardware decides. Results are written as they are made: stop it when you like, and start it again to go
on. Exit status: 0 something was found, 2 the request cannot be carried out.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from launch import Parser, at_least, guarded


def shape_of(text):
    """(m, n, k) of "4096x4096x512"."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(p.isdigit() and int(p) for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK, three positive numbers")
    return tuple(map(int, parts))


def parse(argv=None):
    """Command line -> arguments."""
    p = Parser(prog="tune.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("op", nargs="?", help="gemm, gemm_all_reduce, gemm_reduce_scatter or all_gather_gemm")
    p.add_argument("--shapes", type=shape_of, nargs="+", metavar="MxNxK", help="of the whole product (thirty, tall, flat and small)")
    p.add_argument("--seconds", type=float, default=120, help="start nothing after so long (120)")
    p.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    p.add_argument("--rows", action="store_true", help="B is row-major (K, N); without it the transpose of a row-major (N, K)")
    p.add_argument("--tried", type=at_least(1), default=10, help="configurations for each shape (10)")
    p.add_argument("--file", type=Path, help="keep results there instead of this user's file")
    p.add_argument("--ship", type=Path, metavar="FILE", help="write the fastest line of every case there; measure nothing")
    p.add_argument("--results", type=Path, metavar="LINES", help="with --ship: of these lines of benchmarks/multigpu.py instead")
    p.add_argument("--show", action="store_true", help="print what the file knows; measure nothing")
    args = p.parse_args(argv)
    if not (args.show or args.ship) and not args.op:
        p.error("which operator? Name one, or use --show")
    return args


def show(args):
    """Print the best of every case."""
    from pknumba.config.kept import user_file
    from pknumba.tuning.tuner import best_of, of_results
    path = args.file or user_file()
    if args.ship:
        given = of_results(args.results) if args.results else None
        args.ship.write_text("".join(json.dumps(r) + "\n" for r in best_of(path, args.op, given)))
        return 0
    for r in best_of(path, args.op):
        fields = " ".join(f"{k}={v}" for k, v in r["config"].items() if k not in ("dtype", "b_transposed"))
        case = f"{r['op']:<20} {'x'.join(map(str, r['shape'])):<20} {r['dtype']} {r['world']} ranks {r['card']}"
        print(f"{case} {r['us']:10.1f} us  {fields}")
    print(f"in {path}")
    return 0


def main(argv=None):
    """Tune or show; returns the exit status."""
    args = parse(argv)
    if args.show or args.ship:
        return show(args)
    from pknumba import World
    from pknumba.config.kept import user_file
    from pknumba.tuning.shapes import THIRTY
    from pknumba.tuning.tuner import candidates, foreign, tune
    candidates(args.op, (1, 1, 1))                  # an operator that nobody knows needs no GPU to be refused
    os.environ.setdefault("PKNUMBA_TUNED", "0")
    launched = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1
    world = World.mpi(executor="gpu") if launched else World.local(1, executor="gpu")

    def say(text):
        if world.rank == 0:
            print(text, flush=True)
    path = args.file or user_file()
    others = foreign(path, world.card) if path else []
    if others:
        say(f"{path.name} has results of {', '.join(others)} only. They do not count on this {world.card}; new ones are added.")
    found = tune(world, args.op, args.shapes or THIRTY, seconds=args.seconds, dtype=args.dtype, transposed=not args.rows, file=args.file,
                 limit=args.tried, say=say)
    say(f"{len(found)} shapes, kept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded("tune.py", main))
