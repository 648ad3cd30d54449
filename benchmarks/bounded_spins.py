"""What it costs that no wait of a kernel lasts for ever: gemm_all_reduce with its waits bounded and without, interleaved.

    mpirun -n 2 python benchmarks/bounded_spins.py                      a GPU for each rank
    ./scripts/mps run -n 2 python benchmarks/bounded_spins.py           ranks that share a GPU

Without a bound (PKNUMBA_UNBOUNDED=1 while the kernel is compiled) a wait looks neither at the clock nor at the abort word. Each round
times both variants, one after the other, in turning order; the cost is the median over rounds of the ratio of their times.
"""

import os
import sys
from functools import partial

import protocol
import torch

from pknumba import World, gemm_all_reduce

SHAPE = 8192, 8192, 8192
#: Calls that are timed together.
CALLS = 5


def variants(worlds, A, B):
    """{name: (world, call, result)}; each has a world of its own, whose first call compiles the kernel in its way."""
    made = {}
    for name, world in worlds.items():
        os.environ["PKNUMBA_UNBOUNDED"] = str(int(name == "unbounded"))
        out = world.symmetric((A.shape[0], B.shape[1]), "bfloat16")
        call = partial(gemm_all_reduce, world, A, B, out=out)
        call()
        world.synchronize()
        made[name] = world, call, protocol.as_torch(out.local)
    return made


def timed(world, call):
    """Microseconds of a call on this rank."""
    world.barrier()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / CALLS


def main():
    """Both results are the same and right, then both are timed. Returns the exit status."""
    args = protocol.options(__doc__, "bounded_spins.jsonl").parse_args()
    worlds = {name: World.mpi(executor="gpu") for name in ("bounded", "unbounded")}
    world = worlds["bounded"]
    torch.cuda.set_device(world.device)
    generator = torch.Generator("cuda").manual_seed(world.rank)
    m, n, k = SHAPE
    A, B = (torch.randn(shape, device="cuda", generator=generator).bfloat16() for shape in ((m, k), (n, k)))
    B = (B / k**0.5).t()
    made = variants(worlds, A, B)
    same = torch.equal(made["bounded"][2], made["unbounded"][2])
    rows = slice(0, 64)
    part = (A[rows].double() @ B.double()).cpu().numpy()
    truth = torch.from_numpy(sum(world.allgather(part))).cuda()
    error = ((made["bounded"][2][rows].double() - truth).norm() / truth.norm()).item()
    if not all(world.allgather(same and error < 5.6e-3)):
        print(f"rank {world.rank}: WRONG, the same {same}, relative error {error:.2e}", flush=True)
        return 1
    times = {name: [] for name in made}
    for r in range(max(30, args.rounds)):
        for name in list(made)[::1 if r % 2 else -1]:
            times[name].append(timed(*made[name][:2]))
    times = {name: [max(t) for t in zip(*world.allgather(mine))] for name, mine in times.items()}
    ratios = [a / b for a, b in zip(times["bounded"], times["unbounded"])]
    gpus = len(set(world.allgather(world.device)))
    if world.rank == 0:
        cost = {f"cost_{name}_percent": round(100 * (value - 1), 3)
                for name, value in zip(("median", "p10", "p90"), protocol.summary([r * 1e3 for r in ratios])) for value in [value / 1e3]}
        protocol.write(args.out, "gemm_all_reduce, bounded waits", SHAPE, "bfloat16", times["bounded"], "pknumba without bounds",
                       times["unbounded"], error, world=world.size, gpus=gpus, config="chosen by shape", **cost)
        print(cost, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
