"""pknumba.gemm_all_reduce over MPI ranks: 1,000 calls in a row with new inputs, then its time beside the plain GEMM's.

    mpirun -n 4 python benchmarks/gemm_all_reduce.py                    a GPU for each rank
    ./scripts/mps run -n 4 python benchmarks/gemm_all_reduce.py         ranks that share a GPU

The calls of the first part differ in data and sign, nothing waits for the device between them, ranks are delayed against each
other on purpose, and every result is compared on the device with the float64 sum over all ranks. Only then the host looks.
"""

import sys
from functools import partial

import protocol
import torch
from ranks import worst_of

from pknumba import World, gemm, gemm_all_reduce

SHAPES = [(1024, 1024, 512), (2048, 2048, 1024), (4096, 4096, 1024), (4096, 4096, 4096), (8192, 8192, 2048)]
#: Different inputs in memory; calls scale them by powers of two, which changes every element and rounds nothing.
POOL = 5
#: Half an ulp for each rank's product and half for the sum; the products' roundings add up as a random walk.
LIMIT = {"bfloat16": 5.6e-3, "float16": 8e-4}


def inputs(world, shape, dtype):
    """POOL sets: [(A, B of this rank, float64 sum over ranks of A_r @ B_r)]. Every rank draws all ranks' inputs."""
    (m, n, k), kind, sets = shape, getattr(torch, dtype), []
    for number in range(POOL):
        total = torch.zeros(m, n, device="cuda", dtype=torch.float64)
        for rank in range(world.size):
            source = torch.Generator("cuda").manual_seed(1000 * number + rank)
            A = torch.randn(m, k, device="cuda", generator=source).to(kind)
            B = (torch.randn(n, k, device="cuda", generator=source) / k**0.5).to(kind).t()
            total += A.double() @ B.double()
            if rank == world.rank:
                mine = A, B
        sets.append((*mine, total))
    return sets


def scale(call):
    """Factor of a call: a power of two with a sign, repeating after 16 calls, so that no two calls in a row agree."""
    return (-1) ** (call * 5 % 8) * 2.0 ** (call * 7 % 8 - 4)


def many(world, sets, out, calls):
    """Relative errors of that many consecutive calls, a tensor on the device; the host waits for nothing before the end."""
    A = torch.empty_like(sets[0][0])
    result = protocol.as_torch(out.local)
    errors = torch.full((calls,), float("nan"), device="cuda", dtype=torch.float64)
    for call in range(calls):
        A0, B, total = sets[call % POOL]
        torch.mul(A0, scale(call), out=A)
        if call % 7 == world.rank % 7:                                  # this rank comes late
            torch.cuda._sleep(200_000)
        gemm_all_reduce(world, A, B, out=out)
        errors[call] = (result.double() / scale(call) - total).norm() / total.norm()
    world.synchronize()
    torch.cuda.synchronize()
    return errors.cpu()


def timed(world, call, rounds):
    """Microseconds per call, one number for each of that many rounds of ten calls: the maximum over ranks."""
    call()
    world.synchronize()
    events = []
    for _ in range(rounds):
        world.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            call()
        end.record()
        events.append((start, end))
        torch.cuda.synchronize()
    mine = [a.elapsed_time(b) * 100 for a, b in events]
    return [max(times) for times in zip(*world.allgather(mine))]


def case(world, shape, dtype, args):
    """Check and time one shape; rank 0 writes its line. Returns whether every call was right on every rank."""
    sets = inputs(world, shape, dtype)
    with world.symmetric(shape[:2], dtype) as out:
        errors = many(world, sets, out, args.calls)
        # A nan is never below the limit; max() of torch keeps it.
        worst = worst_of(world, float(errors.max()))
        wrong = sum(world.allgather(int((~(errors < LIMIT[dtype])).sum())))
        if wrong and world.rank == 0:
            print(f"WRONG {dtype} {shape}: {wrong} of {args.calls * world.size} results, error up to {worst:.2e}", flush=True)
        if wrong:
            return False
        A, B, _ = sets[0]
        C = torch.empty(shape[:2], device="cuda", dtype=A.dtype)
        ours = timed(world, partial(gemm_all_reduce, world, A, B, out=out), args.rounds)
        plain = timed(world, partial(gemm, world, A, B, out=C), args.rounds)
    gpus = len(set(world.allgather(world.device)))
    if world.rank == 0:
        protocol.write(args.out, "gemm_all_reduce", shape, dtype, ours, "pknumba gemm without the all-reduce", plain, worst,
                       world=world.size, gpus=gpus, config="chosen by shape", calls_checked=args.calls,
                       tflops=round(2 * shape[0] * shape[1] * shape[2] / protocol.summary(ours)[0] * 1e-6, 1))
    return True


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "gemm_all_reduce.jsonl")
    p.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    p.add_argument("--calls", type=int, default=1000, help="consecutive calls to check")
    args = p.parse_args()
    world, right = World.mpi(executor="gpu"), True
    torch.cuda.set_device(world.device)
    budget = protocol.Budget(args.budget)
    for dtype in args.dtypes:
        for shape in SHAPES:
            name = f"{dtype}-{'x'.join(map(str, shape))}"
            if args.only in name and not any(world.allgather(budget.spent(name))):
                right &= case(world, shape, dtype, args)
                torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
