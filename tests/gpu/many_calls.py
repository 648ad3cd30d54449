"""Many gemm_all_reduce calls in a row, every rank a process. Prints PASS from rank 0, or what was wrong, with status 1.

    ./scripts/mps run -n 4 -- python tests/gpu/many_calls.py --calls 1000

Every call has new values in the same arrays; ranks are late in turn; the host waits for nothing in between. Values are -1, 0
and 1, so every result is exact; each rank knows everybody's and checks its result on the device.
"""

import argparse
import sys
import time

import torch

from pknumba import World, gemm_all_reduce


def signs(shape, seed):
    """bfloat16 tensor of -1, 0 and 1."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator, device="cuda", dtype=torch.int8).bfloat16()


def play(world, m, n, k, calls):
    """(how many results were wrong, seconds)."""
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((m, k), (n, k)))
    out = [world.symmetric((m, n)) for _ in range(2)]
    seen = [torch.from_dlpack(x) for x in out]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    start = time.perf_counter()
    for call in range(calls):
        truth = torch.zeros(m, n, device="cuda")
        for rank in range(world.size):
            x, y = signs((m, k), 100_000 * rank + 2 * call), signs((n, k), 100_000 * rank + 2 * call + 1)
            truth += x.float() @ y.T.float()
            if rank == world.rank:
                a.copy_(x), b.copy_(y)
        if call % 7 == world.rank % 7:
            torch.cuda._sleep(400_000)
        gemm_all_reduce(world, a, b.T, out=out[call % 2])
        wrong += (seen[call % 2] != truth.bfloat16()).any()
        if call % 200 == 199 and world.rank == 0:
            print(f"call {call + 1} of {calls}, {time.perf_counter() - start:.1f} s", flush=True)
    world.synchronize()
    return int(wrong), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--shape", type=int, nargs=3, default=(500, 392, 64), metavar=("M", "N", "K"))
    parser.add_argument("--wait-limit", type=float, default=30, help="seconds")
    arguments = parser.parse_args()
    with World.mpi(executor="gpu", wait_limit_s=arguments.wait_limit, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        wrong, seconds = play(world, *arguments.shape, arguments.calls)
        everyone = world.allgather(wrong)
        if world.rank == 0:
            print(f"{world.size} ranks, {world.num_sms} SMs each, {arguments.calls} calls, {seconds:.1f} s, wrong: {everyone}")
            print("FAIL" if any(everyone) else "PASS", flush=True)
    sys.exit(1 if any(everyone) else 0)


if __name__ == "__main__":
    main()
