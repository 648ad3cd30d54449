"""Operators that multiply and communicate, against torch.matmul and NCCL one after the other; one GPU for each rank.

    mpirun -n 2 python benchmarks/against_nccl.py

Both run in one process per rank, interleaved, and are timed over ten calls in a row with CUDA events; a line holds the maximum
over ranks. NVLink multicast stays off in NCCL.
"""

import sys
from functools import partial
from itertools import product

import protocol
import torch
from fused import FUSED
from ranks import beside_nccl, interleaved

from pknumba import GemmConfig, gemm
from pknumba.config import best

SHAPES = [(8192, 8192, 4096), (4096, 4096, 2048), (2048, 2048, 1024), (16384, 16384, 8192)]
#: Communicating SMs that are tried, beside the configuration that a call chooses; and tiles of SMs that do both.
COMM_SMS = (4, 8, 16, 24)
_USUAL = dict(tile_m=128, tile_n=192, stages=4, c_stages=3, ping_pong=True)
_WIDE = dict(tile_m=128, tile_n=256, stages=4, c_stages=2)
TILES = {"within SMs, tiles 128 x 192": _USUAL, "within SMs, tiles 128 x 256": _WIDE,
         "within SMs, 64 rows at once": dict(_USUAL, pace_m=64), "within SMs, 32 rows at once": dict(_USUAL, pace_m=32),
         **{f"within SMs, {rows} rows of a shard at once": dict(_USUAL, written=True, chunk_m=rows) for rows in (64, 32, 16)},
         "within SMs, tiles 128 x 256, 32 rows of a shard at once": dict(_WIDE, written=True, chunk_m=32)}


def error(world, op, config):
    """Largest relative error over the ranks of one call; NaN stays NaN."""
    op.ours(config)
    world.synchronize()
    torch.cuda.synchronize()
    mine = ((op.found().double() - op.expected).norm() / op.expected.norm()).item()
    return max(world.allgather(mine), key=lambda e: float("inf") if e != e else e)


def case(world, kind, shape, args):
    """Check and time one operator on one shape; rank 0 writes a line for the best number of communication SMs."""
    m, n, k = shape
    op = kind(world, shape)
    fields = {c: vars(best(m, n, k, world.num_sms - c, GemmConfig())) for c in args.comm_sms}
    configs = {f"{c} comm SMs": op.make_config(fields[c], c) for c in args.comm_sms}
    known = op.make_config({}, None)
    configs |= {name: op.make_config(tile, None) for name, tile in TILES.items() if all(hasattr(known, field) for field in tile)}
    configs["chosen"] = None
    worst = max(error(world, op, config) for config in configs.values())
    if not worst < op.limit:
        print(f"WRONG {op.name} {shape}: relative error {worst:.2e}", flush=True)
        return False
    op.expected = None
    whole = torch.randn(m, k, device="cuda").bfloat16()
    C, E = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = {name: partial(op.ours, config) for name, config in configs.items()}
    plain = {"gemm": lambda: gemm(world, whole, op.B, out=C), "cublas": lambda: torch.matmul(whole, op.B, out=E)}
    times = interleaved(world, {"theirs": op.theirs, **ours, **plain}, args.rounds, pause=args.pause)
    if world.rank == 0:
        medians = {name: protocol.summary(t)[0] for name, t in times.items()}
        chosen = min(ours, key=medians.get)
        config = configs[chosen] or best(m, n, k, world.num_sms, op.make_config({}, None), world.size)
        protocol.write(args.out, op.name, shape, "bfloat16", times[chosen], op.rival, times["theirs"], worst,
                       world=world.size, gpus=world.size, config=vars(config), medians_us=medians, pause_s=args.pause,
                       tflops=round(op.flops(shape) / medians[chosen] * 1e-6, 1))
        protocol.write(args.out, "gemm", shape, "bfloat16", times["gemm"], "cublas (torch.matmul)", times["cublas"], None,
                       world=world.size, gpus=world.size, pause_s=args.pause, tflops=round(2 * m * n * k / medians["gemm"] * 1e-6, 1))
        print("   ", {name: round(t, 1) for name, t in medians.items()}, flush=True)
    op.close()
    return True


def cases(world, args, budget, shapes=SHAPES):
    """Every operator on every shape that the flags name. Returns whether all were right."""
    right = True
    for shape, op in product(shapes, args.ops):
        name = f"{op} {'x'.join(map(str, shape))}"
        if args.only in name and not any(world.allgather(budget.spent(name))):
            right &= case(world, FUSED[op], shape, args)
            torch.cuda.empty_cache()
    return right


def main():
    """Run the shapes that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    p.add_argument("--ops", nargs="+", choices=FUSED, default=list(FUSED))
    p.add_argument("--pause", type=float, default=0.0, help="seconds that cards rest before each timed batch")
    p.add_argument("--comm-sms", nargs="*", type=int, default=COMM_SMS, help="numbers of communicating SMs to try")
    args = p.parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)))


if __name__ == "__main__":
    sys.exit(main())
