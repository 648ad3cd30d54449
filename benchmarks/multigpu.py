"""Everything that is measured over several GPUs, one rank on each, in one run; lines are saved as they are made.

    mpirun -n 2 python benchmarks/multigpu.py                 in under nine minutes
    mpirun -n 2 python benchmarks/multigpu.py --parts attention experts

Parts, each within its share of the budget: ``fused`` (operators that multiply and communicate against cuBLAS and NCCL, with a sweep of
comm_sms), ``norms``, ``attention`` and ``experts`` (layers of models against torch and NCCL), ``collectives`` (against NCCL, 8 bytes to
1 GiB), ``large`` (other fused shapes, 2048 to 32768), ``micro`` (links and latencies), ``symmetric`` (fused operators against torch's
symmetric memory; last, since what hangs ends the run). NVLink multicast stays off.
"""

import sys
from functools import partial

import against_nccl
import attention_nccl
import collectives_nccl
import micro
import moe_nccl
import norms_nccl
import protocol
import symmetric
from ranks import beside_nccl

FIRST = [(8192, 8192, 4096)]
LARGE = [(4096, 4096, 2048), (16384, 16384, 8192), (2048, 2048, 1024), (32768, 32768, 16384)]
#: Numbers of communicating SMs that are tried there.
SOME = (16,)
#: Part -> (share of the time left when it starts, function (world, args, budget) -> whether results were right).
PARTS = {
    "fused": (0.15, partial(against_nccl.cases, shapes=FIRST)),
    "norms": (0.08, norms_nccl.cases),
    "attention": (0.33, attention_nccl.cases),
    "experts": (0.2, moe_nccl.cases),
    "collectives": (0.35, collectives_nccl.cases),
    "large": (0.55, partial(against_nccl.cases, shapes=LARGE, comm_sms=SOME)),
    "micro": (0.4, micro.cases),
    "symmetric": (1.0, symmetric.cases),
}
#: Part -> function (args) -> kernels that are compiled ahead.
KERNELS = {
    "fused": lambda args: against_nccl.kernels(FIRST, args.ops, args.comm_sms, against_nccl.tiles_of(args)),
    "attention": lambda args: attention_nccl.kernels(),
    "large": lambda args: against_nccl.kernels(LARGE, args.ops, SOME, against_nccl.tiles_of(args)),
    "symmetric": symmetric.kernels,
}


def main():
    """Run the parts that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    against_nccl.flags(p)
    p.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    p.set_defaults(budget=480, rounds=20)
    args = p.parse_args()
    whole = protocol.Budget(args.budget)

    def run(world):
        right = True
        for part in args.parts:
            share, play = PARTS[part]
            left = world.allgather(whole.left())[0]
            if world.rank == 0:
                print(f"{part}: {share * left:.0f} of {left:.0f} s", flush=True)
            right &= play(world, args, protocol.Budget(share * left))
        return right
    return beside_nccl(run, [job for part in args.parts for job in KERNELS.get(part, lambda args: ())(args)])


if __name__ == "__main__":
    sys.exit(main())
