"""Host time of a cached call of every operator over MPI ranks: what the caller pays before the device has done anything.

    ./scripts/mps run -n 8 python benchmarks/host_time.py

Small arrays of torch; a few calls in a row (--calls) that nobody waits for, then a synchronisation. A line holds the slowest rank's
median. Beside them stands what nobody who launches a kernel can do without: the driver's own time for the launch of a small product,
and an addition by torch.
"""

import sys
import time

import protocol
import torch
from launch import prepared

import pknumba
from pknumba import World

CHUNKS = 100


def cases(world):
    """{operator: function of no argument}."""
    def new(*shape):
        return torch.ones(shape, device="cuda", dtype=torch.bfloat16)

    size, call = world.size, {}
    x, y, whole, part = new(64, 256), new(64, 256), new(64 * size, 256), new(64 * size, 256)
    a, b, c, wide = new(64 * size, 64), new(64, 64), new(64 * size, 64), new(64, 64 * size)
    h, weight, share = new(64, 256), new(256), new(64, 64)
    call["all_reduce"] = lambda: pknumba.all_reduce(world, x, out=y)
    call["all_gather"] = lambda: pknumba.all_gather(world, x, out=whole)
    call["reduce_scatter"] = lambda: pknumba.reduce_scatter(world, whole, out=y)
    call["all_to_all"] = lambda: pknumba.all_to_all(world, whole, scatter_axis=0, gather_axis=0, out=part)
    call["broadcast"] = lambda: pknumba.broadcast(world, x, root=0, out=y)
    call["all_reduce_rmsnorm"] = lambda: pknumba.all_reduce_rmsnorm(world, x, h, weight, out=y, residual_out=h)
    call["gemm_all_reduce"] = lambda: pknumba.gemm_all_reduce(world, a, b, out=c)
    call["gemm_reduce_scatter"] = lambda: pknumba.gemm_reduce_scatter(world, a, b, out=share)
    call["all_gather_gemm"] = lambda: pknumba.all_gather_gemm(world, share, b, out=c)
    call["gemm_all_to_all"] = lambda: pknumba.gemm_all_to_all(world, a, b, out=wide)
    _, call["gemm of one rank"], launch, stream = prepared()
    call["the driver alone"] = launch.ready[stream]
    call["torch.add"] = lambda: torch.add(x, x, out=y)
    return call


def host_time(world, call, calls):
    """Microseconds of each call on this rank, so many in a row."""
    for _ in range(10):
        call()
    world.synchronize()
    taken = []
    for _ in range(CHUNKS):
        world.barrier()
        for _ in range(calls):
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) * 1e-3)
        torch.cuda.synchronize()
    return taken


def main():
    """Each operator. Returns the exit status."""
    p = protocol.options(__doc__, "launch.jsonl")
    p.add_argument("--calls", type=int, default=5, help="calls in a row: of many the host waits for the device before long")
    arguments = p.parse_args()
    budget = protocol.Budget(arguments.budget)
    with World.mpi(executor="gpu", wait_limit_s=20, host_limit_s=60) as world:
        torch.cuda.set_device(world.device)
        gpus = len(set(world.allgather(world.device)))
        for name, call in cases(world).items():
            if arguments.only not in name or any(world.allgather(budget.spent(name))):
                continue
            times = max(world.allgather(host_time(world, call, arguments.calls)), key=lambda t: protocol.summary(t)[0])
            if world.rank == 0:
                protocol.write(arguments.out, f"host time of a cached call, {name}", [64, 256], "bfloat16", times, world=world.size,
                               gpus=gpus, in_a_row=arguments.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
