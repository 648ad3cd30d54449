"""Every operator of scripts/run.py once, checked against float64, in one process a rank. Prints PASS from rank 0, or what was wrong, with
status 1.

    mpirun -n 2 python tests/gpu/every_operator.py                             # a GPU for each rank
    ./scripts/mps run -n 4 -- python tests/gpu/every_operator.py --dtype float16
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import run  # noqa: E402
from operators import OPERATORS, Inputs  # noqa: E402

from pknumba import World  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--only", nargs="+", choices=sorted(OPERATORS), default=sorted(OPERATORS), metavar="OP")
    parser.add_argument("--executor", choices=("gpu", "interpreter"), default="gpu")
    arguments, wrong = parser.parse_args(), []
    with World.mpi(executor=arguments.executor, wait_limit_s=20, host_limit_s=120) as world:
        for op in arguments.only:
            # A shape with tails everywhere; attention takes n for a head.
            n = 64 if op.endswith("attention") else 264
            args = run.parse([op, "--m", "136", "--n", str(n), "--k", "200", "--dtype", arguments.dtype, "--executor", arguments.executor])
            inputs = Inputs(OPERATORS[op], world.size, (args.m, args.n, args.k), args.dtype, args.seed, None)
            error, share, seconds = run.measure(world, args, inputs)
            wrong += [op] * (not share <= 1)
            if world.rank == 0:
                print(f"{op:22s} {error:.2e}, {share:.2f} of its bound, {seconds * 1e3:.3f} ms", flush=True)
        if world.rank == 0:
            print(f"{world.size} ranks, {len(arguments.only)} operators, {arguments.dtype}, wrong: {wrong}")
            print("FAIL" if wrong else "PASS", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
