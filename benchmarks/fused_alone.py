"""Products that communicate, on a world of one rank, beside ``gemm``: what calling the operator for ranks costs where there is one.

    python benchmarks/fused_alone.py
"""

import sys
from functools import partial

import protocol
import torch

import pknumba
from pknumba import World, gemm

OPERATORS = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")


def main():
    """Check and time each; write its line. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    p.add_argument("--n", type=int, default=8192, help="rows, columns and depth")
    p.set_defaults(rounds=40)
    args = p.parse_args()
    world, n = World.local(1, executor="gpu"), args.n
    A, B = torch.randn(n, n, device="cuda").bfloat16(), torch.randn(n, n, device="cuda").bfloat16().t()
    symmetric = world.symmetric((n, n), "bfloat16")
    outs = {"gemm_all_reduce": symmetric} | {op: torch.empty(n, n, device="cuda", dtype=torch.bfloat16) for op in ("gemm", *OPERATORS[1:])}
    calls = {"gemm": [partial(gemm, world, A, B, out=outs["gemm"])]}
    calls |= {op: [partial(getattr(pknumba, op), world, A, B, out=outs[op])] for op in OPERATORS}
    for call, in calls.values():
        call()
    world.synchronize()
    if not all(torch.equal(outs["gemm"], x) for x in (protocol.as_torch(symmetric.local), outs[OPERATORS[1]], outs[OPERATORS[2]])):
        print("WRONG: results differ from gemm's")
        return 1
    times, how = protocol.interleaved(calls, 2 * n**3 / 700e12, rounds=args.rounds)
    for op in OPERATORS:
        protocol.write(args.out, op, (n, n, n), "bfloat16", times[op], "pknumba gemm", times["gemm"], how=how,
                       tflops=round(2 * n**3 / protocol.summary(times[op])[0] * 1e-6, 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
