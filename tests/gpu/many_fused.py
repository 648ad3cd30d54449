"""Many calls in a row of the operators that multiply and communicate, every rank a process. Prints PASS from rank 0, or what was
wrong, with status 1.

    ./scripts/mps run -n 4 -- python tests/gpu/many_fused.py --calls 1000

Every call has new values in the same arrays; operators take turns; ranks are late in turn; the host waits for nothing in between.
Values are -1, 0 and 1, so every result is exact; each rank knows everybody's and checks its result on the device.
"""

import argparse
import sys
import time

import torch

import pknumba
from pknumba import World, all_gather_gemm
from pknumba.config import GemmAllReduceConfig, GemmReduceScatterConfig

#: Name -> (public function, options).
OPERATORS = {"gemm_reduce_scatter": ("gemm_reduce_scatter", {}), "all_gather_gemm": ("all_gather_gemm", {}),
             "gemm_all_reduce": ("gemm_all_reduce", {}), "gemm_all_to_all": ("gemm_all_to_all", {}),
             "adds": ("gemm_reduce_scatter", dict(config=GemmReduceScatterConfig(adds=True, comm_sms=2))),
             "between": ("gemm_all_reduce", dict(config=GemmAllReduceConfig(comm_sms=2)))}


def signs(shape, seed):
    """bfloat16 tensor of -1, 0 and 1."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator, device="cuda", dtype=torch.int8).bfloat16()


class Problem:
    """One operator's arrays on this rank, with m rows of the whole product."""

    def __init__(self, world, name, m, n, k):
        self.world, self.name, self.shape = world, name, (m, n, k)
        rows = torch.tensor_split(torch.empty(m), world.size)[world.rank].shape[0]
        gathers, scatters, exchanges = name == "all_gather_gemm", name in ("gemm_reduce_scatter", "adds"), name == "gemm_all_to_all"
        self.a = torch.empty(rows if gathers else m, k, dtype=torch.bfloat16, device="cuda")
        self.b = torch.empty(n, k, dtype=torch.bfloat16, device="cuda")
        shape = rows if scatters or exchanges else m, world.size * n if exchanges else n
        self.out = torch.empty(shape, dtype=torch.bfloat16, device="cuda")

    def fill(self, call):
        """New values; returns what this rank should get."""
        (m, n, k), size, rank = self.shape, self.world.size, self.world.rank
        if self.name == "all_gather_gemm":
            whole, y = signs((m, k), 3 * call), signs((n, k), 100_000 * rank + 3 * call + 1)
            self.a.copy_(torch.tensor_split(whole, size)[rank]), self.b.copy_(y)
            return (whole.float() @ y.T.float()).bfloat16()
        truth, blocks = torch.zeros(m, n, device="cuda"), []
        for r in range(size):
            x, y = signs((m, k), 100_000 * r + 3 * call), signs((n, k), 100_000 * r + 3 * call + 1)
            product = x.float() @ y.T.float()
            truth += product
            blocks.append(torch.tensor_split(product.bfloat16(), size)[rank])
            if r == rank:
                self.a.copy_(x), self.b.copy_(y)
        if self.name == "gemm_all_to_all":
            return torch.cat(blocks, 1)
        return (torch.tensor_split(truth, size)[rank] if self.name in ("gemm_reduce_scatter", "adds") else truth).bfloat16()

    def call(self):
        """The operator."""
        if self.name == "all_gather_gemm":
            all_gather_gemm(self.world, self.a, self.b.T, rows=self.shape[0], out=self.out)
        else:
            function, options = OPERATORS[self.name]
            getattr(pknumba, function)(self.world, self.a, self.b.T, out=self.out, **options)


def play(world, names, shapes, calls):
    """(how many results were wrong, seconds)."""
    problems = [Problem(world, name, *shape) for shape in shapes for name in names]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    start = time.perf_counter()
    for call in range(calls):
        problem = problems[call % len(problems)]
        truth = problem.fill(call)
        problem.out.fill_(float("nan"))
        if call % 7 == world.rank % 7:
            torch.cuda._sleep(400_000)
        problem.call()
        wrong += (problem.out != truth).any()
        if call % 200 == 199 and world.rank == 0:
            print(f"call {call + 1} of {calls}, {time.perf_counter() - start:.1f} s", flush=True)
    world.synchronize()
    torch.cuda.synchronize()
    return int(wrong), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--operators", nargs="+", choices=[*OPERATORS], default=[*OPERATORS])
    parser.add_argument("--wait-limit", type=float, default=30, help="seconds")
    arguments = parser.parse_args()
    with World.mpi(executor="gpu", wait_limit_s=arguments.wait_limit, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        shapes = [(128 * world.size, 264, 64), (499, 392, 72)]      # whole tiles; shares of unequal length, tails everywhere
        wrong, seconds = play(world, arguments.operators, shapes, arguments.calls)
        everyone = world.allgather(wrong)
        if world.rank == 0:
            print(f"{world.size} ranks, {world.num_sms} SMs each, {arguments.calls} calls, {seconds:.1f} s, wrong: {everyone}")
            print("FAIL" if any(everyone) else "PASS", flush=True)
    sys.exit(1 if any(everyone) else 0)


if __name__ == "__main__":
    main()
