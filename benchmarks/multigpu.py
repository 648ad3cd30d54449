"""Everything that is measured over several GPUs, one rank on each, in one run; lines are saved as they are made.

    mpirun -n 2 python benchmarks/multigpu.py                 in under nine minutes
    mpirun -n 2 python benchmarks/multigpu.py --parts fused collectives

Parts, each within its share of the budget: ``fused`` (operators that multiply and communicate against cuBLAS and NCCL, with a sweep of
comm_sms), ``collectives`` (against NCCL, 8 bytes to 1 GiB), ``micro`` (links and latencies), ``large`` (other fused shapes). NVLink
multicast stays off.
"""

import sys
from functools import partial

import against_nccl
import collectives_nccl
import micro
import protocol
from fused import FUSED
from ranks import beside_nccl

LARGE = [(4096, 4096, 2048), (16384, 16384, 8192), (2048, 2048, 1024), (32768, 32768, 16384)]
#: Part -> (share of the time left when it starts, function (world, args, budget) -> whether results were right).
PARTS = {
    "fused": (0.35, partial(against_nccl.cases, shapes=[(8192, 8192, 4096)])),
    "collectives": (0.6, collectives_nccl.cases),
    "micro": (0.4, micro.cases),
    "large": (1.0, partial(against_nccl.cases, shapes=LARGE)),
}


def main():
    """Run the parts that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    p.add_argument("--ops", nargs="+", choices=FUSED, default=list(FUSED))
    p.add_argument("--pause", type=float, default=0.0, help="seconds that cards rest before each timed batch of fused operators")
    p.add_argument("--comm-sms", nargs="*", type=int, default=against_nccl.COMM_SMS, help="numbers of communicating SMs to try")
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
    return beside_nccl(run)


if __name__ == "__main__":
    sys.exit(main())
