"""pknumba.gemm_all_reduce against what a user would do without it: torch.matmul, then NCCL's all-reduce; one GPU for each rank.

    mpirun -n 2 python benchmarks/against_nccl.py

Both run in one process per rank, interleaved, and are timed over ten calls in a row with CUDA events; a line holds the maximum
over ranks. NVLink multicast stays off in NCCL.
"""

import os
import sys

import protocol
import torch
import torch.distributed as dist

from pknumba import GemmAllReduceConfig, GemmConfig, World, gemm, gemm_all_reduce
from pknumba.config import best

SHAPES = [(8192, 8192, 4096), (4096, 4096, 2048), (2048, 2048, 1024), (16384, 16384, 8192)]
COMM_SMS = (4, 8, 16, 24, 32)
CALLS = 10


def connect(world):
    """torch.distributed over NCCL with the world's ranks, on this machine only."""
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    port = 20000 + sum(world.allgather(os.getpid())) % 20000
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank, world_size=world.size,
                            device_id=torch.device("cuda", world.device))


def interleaved(world, variants, rounds):
    """{name: [microseconds per call, the maximum over ranks, one number a round]}."""
    events = {name: [] for name in variants}
    names = list(variants)
    for call in variants.values():
        call()
    world.synchronize()
    torch.cuda.synchronize()
    for r in range(rounds):
        for name in names[r % len(names):] + names[:r % len(names)]:
            torch.cuda.synchronize()
            world.barrier()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(CALLS):
                variants[name]()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [max(times) for times in zip(*world.allgather([a.elapsed_time(b) * 1e3 / CALLS for a, b in pairs]))]
            for name, pairs in events.items()}


def case(world, shape, args):
    """Check and time one shape; rank 0 writes a line for the best number of communication SMs and one for the plain GEMM."""
    m, n, k = shape
    source = torch.Generator("cuda").manual_seed(world.rank)
    A = torch.randn(m, k, device="cuda", generator=source).bfloat16()
    B = (torch.randn(n, k, device="cuda", generator=source) / k**0.5).bfloat16().t()
    C, D, E = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def theirs():
        torch.matmul(A, B, out=D)
        dist.all_reduce(D)

    configs = {c: best(m, n, k, world.num_sms - c, GemmConfig()) for c in COMM_SMS}
    configs = {c: GemmAllReduceConfig(**vars(cfg), comm_sms=c) for c, cfg in configs.items()}
    with world.symmetric((m, n), "bfloat16") as out:
        expected = A.double() @ B.double()
        dist.all_reduce(expected)
        worst = 0.0
        for config in configs.values():
            gemm_all_reduce(world, A, B, out=out, config=config)
            world.synchronize()
            torch.cuda.synchronize()
            mine = ((protocol.as_torch(out.local).double() - expected).norm() / expected.norm()).item()
            worst = max(worst, *world.allgather(mine))
        if not worst < 5.6e-3:
            print(f"WRONG {shape}: relative error {worst:.2e}", flush=True)
            return False
        del expected
        ours = {f"{c} comm SMs": lambda c=c: gemm_all_reduce(world, A, B, out=out, config=configs[c]) for c in COMM_SMS}
        plain = {"gemm": lambda: gemm(world, A, B, out=C), "cublas": lambda: torch.matmul(A, B, out=E)}
        times = interleaved(world, {"theirs": theirs, **ours, **plain}, args.rounds)
    if world.rank == 0:
        medians = {name: protocol.summary(t)[0] for name, t in times.items()}
        chosen = min(ours, key=medians.get)
        protocol.write(args.out, "gemm_all_reduce", shape, "bfloat16", times[chosen], "cublas + NCCL all-reduce", times["theirs"], worst,
                       world=world.size, gpus=world.size, config=vars(configs[int(chosen.split()[0])]), medians_us=medians,
                       tflops=round(2 * m * n * k / medians[chosen] * 1e-6, 1))
        protocol.write(args.out, "gemm", shape, "bfloat16", times["gemm"], "cublas (torch.matmul)", times["cublas"], None,
                       world=world.size, gpus=world.size, tflops=round(2 * m * n * k / medians["gemm"] * 1e-6, 1))
        print("   ", {name: round(t, 1) for name, t in medians.items()}, flush=True)
    return True


def main():
    """Run the shapes that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    args = p.parse_args()
    world, right = World.mpi(executor="gpu"), True
    if len(set(world.allgather(world.device))) < world.size:
        print("against_nccl: ranks share a GPU, which NCCL does not allow. Start one rank for each GPU.", file=sys.stderr)
        return 2
    torch.cuda.set_device(world.device)
    connect(world)
    budget = protocol.Budget(args.budget)
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        if args.only in name and not any(world.allgather(budget.spent(name))):
            right &= case(world, shape, args)
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
