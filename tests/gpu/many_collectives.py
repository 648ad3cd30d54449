"""Many calls of every collective in a row, every rank a process. Prints PASS from rank 0, or what was wrong, with status 1.

    ./scripts/mps run -n 4 -- python tests/gpu/many_collectives.py --calls 1000

Every call has new values in the same arrays; ranks are late in turn; the host waits for nothing in between. Values are small
integers, so every result is exact; each rank can draw everybody's and checks its result on the device.
"""

import argparse
import sys
import time

import torch

import pknumba
from pknumba import CommConfig, World

#: Operator -> (shape of x for a world of that size, arguments, function (every rank's x, rank) of the result or None).
CASES = {
    "all_reduce": lambda n: ((1000,), {}, lambda xs, r: sum(xs)),
    "all_reduce of more": lambda n: ((700_001,), {}, lambda xs, r: sum(xs)),
    "all_reduce pushed": lambda n: ((400_000 * n,), dict(config=CommConfig(algorithm="push")), lambda xs, r: sum(xs)),
    "all_reduce_rmsnorm": lambda n: ((3, 1000), {}, lambda xs, r: sum(xs)),
    "all_reduce_rmsnorm of more": lambda n: ((301, 1001), {}, lambda xs, r: sum(xs)),
    "all_gather": lambda n: ((16, 333), dict(axis=1), lambda xs, r: torch.cat(xs, 1)),
    "reduce_scatter": lambda n: ((16 * n, 333), dict(axis=0), lambda xs, r: sum(xs)[16 * r:16 * r + 16]),
    "reduce_scatter pushed": lambda n: ((160 * n, 333), dict(config=CommConfig(algorithm="push")),
                                        lambda xs, r: sum(xs)[160 * r:160 * r + 160]),
    "all_to_all": lambda n: ((2, 48, 8 * n, 64), dict(scatter_axis=2, gather_axis=1),
                             lambda xs, r: torch.cat([x[:, :, 8 * r:8 * r + 8] for x in xs], 1)),
    "broadcast": lambda n: ((5000,), dict(root=n - 1), lambda xs, r: xs[n - 1]),
    "reduce": lambda n: ((5000,), dict(root=1), lambda xs, r: sum(xs) if r == 1 else None),
    "gather": lambda n: ((5000,), dict(root=1), lambda xs, r: torch.cat(xs) if r == 1 else None),
    "scatter": lambda n: ((500 * n,), dict(root=0), lambda xs, r: xs[0][500 * r:500 * r + 500]),
    "send_recv": lambda n: ((5000,), dict(pairs=tuple((r, (r + 1) % n) for r in range(n))), lambda xs, r: xs[(r - 1) % n]),
}


def normed(world, x):
    """all_reduce_rmsnorm: its sum, NaN where the norm is wrong. Sums and products of a row in float32 are off by 1e-5 at most."""
    residual, weight = draw(x.shape, 1, 99), draw(x.shape[-1:], 2, 99)
    y, h = pknumba.all_reduce_rmsnorm(world, x, residual, weight)
    want = h * torch.rsqrt((h.double() ** 2).mean(-1, keepdim=True) + 1e-6) * weight
    return torch.where((y - want).abs() <= 1e-5 * (1 + want.abs()), h - residual, torch.nan)


def draw(shape, call, rank):
    generator = torch.Generator("cuda").manual_seed(1000 * rank + call % 97)
    return torch.randint(-9, 10, shape, generator=generator, device="cuda", dtype=torch.int32).float()


SPECIAL = {"all_reduce_rmsnorm": normed}


def play(world, name, calls):
    """How many of the results were wrong."""
    shape, arguments, define = CASES[name](world.size)
    operator, x = SPECIAL.get(name.split()[0]) or getattr(pknumba, name.split()[0]), torch.empty(shape, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for call in range(calls):
        xs = [draw(shape, call, r) for r in range(world.size)]
        x.copy_(xs[world.rank])
        want = define(xs, world.rank)
        if call % 7 == world.rank % 7:
            torch.cuda._sleep(200_000)
        found = operator(world, x, **arguments)
        if want is not None:
            wrong += (found != want).any()
    world.synchronize()
    return int(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with World.mpi(executor="gpu", wait_limit_s=30, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        failed = False
        for name in CASES:
            if arguments.only in name:
                start = time.perf_counter()
                everyone = world.allgather(play(world, name, arguments.calls))
                seconds = time.perf_counter() - start
                failed |= any(everyone)
                if world.rank == 0:
                    print(f"{name}: {world.size} ranks, {arguments.calls} calls, {seconds:.1f} s, wrong: {everyone}", flush=True)
        if world.rank == 0:
            print("FAIL" if failed else "PASS", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
