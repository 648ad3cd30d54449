"""Collectives over MPI ranks: bytes moved per second at 256 MiB for each rank, and the latency of small all-reduces beside a barrier's.

    mpirun -n 4 python benchmarks/collectives.py                    a GPU for each rank
    ./scripts/mps run -n 8 python benchmarks/collectives.py         ranks that share a GPU

A rate is bytes that a rank's kernel reads plus those it writes, over the time of the slowest rank, summed over ranks; beside it
the rate of a plain copy on the device by all ranks at once, likewise summed. For rates ranks start together, behind a meeting on the
device: after a barrier of the hosts alone, who comes first waits within its first call, while copies of who starts apart have more of the
card. Results are checked before anything is timed.
"""

import sys
from functools import partial

import protocol
import torch

import pknumba
from pknumba import CommConfig, World
from pknumba.primitives import announce, await_all, i32, times
from pknumba.templates import Comm, communicate
from pknumba.templates.geometry import Form

SMALL = [8, 64, 512, 4096, 16384, 65536, 262144, 1 << 20]
MIB = 1 << 20


class Barrier(Comm):
    """One block of every rank meets the others': what a handshake costs."""

    operator = "barrier"

    @staticmethod
    def communicator(cfg, g, s, task):
        pass

    @classmethod
    def form(kernel, size, shape):
        """Nothing is moved."""
        return Form(shape, shape)

    @classmethod
    def driver(kernel, role):
        """A meeting alone."""
        def meet(cfg, g, s, part, place, places):
            epoch = i32(times(g.ready, g.rank) + 1)
            announce(g.ready, g.rank)
            await_all(g.ready, 0, 1, epoch)
        return lambda communicate, _: meet


def meeting(world):
    """A function that lets every rank's stream wait until all ranks have come."""
    token, one = torch.ones(1, device="cuda"), CommConfig(blocks=1, warps=1, unroll=2)
    return lambda: communicate(Barrier, world, token, None, one, None)


def timed(world, call, rounds, batch, meet=None):
    """Microseconds of a call on the slowest rank, a number for each round of ``batch`` calls in a row, which begin after ``meet()``."""
    for _ in range(3):
        call()
    world.synchronize()
    events = []
    for _ in range(rounds):
        world.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if meet:
            meet()
        start.record()
        for _ in range(batch):
            call()
        end.record()
        events.append((start, end))
        torch.cuda.synchronize()
    each = world.allgather([a.elapsed_time(b) * 1e3 / batch for a, b in events])
    return list(map(max, zip(*each)))


def copy_rate(world, rounds, meet):
    """Bytes read plus written per second of plain copies of 256 MiB, by every rank at once (under MPS a rank has a part of the SMs)."""
    x = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() * world.size / (protocol.summary(timed(world, lambda: y.copy_(x), rounds, 3, meet))[0] * 1e-6)


def large(world, name, total):
    """(function that calls the operator, function that says whether the result is right, bytes that a rank moves)."""
    n, size = total // 2, world.size
    shape, arguments, out_shape, moved = {
        "all_gather": ((n // size,), {}, (n,), 2 * total),
        "reduce_scatter": ((n,), {}, (n // size,), total + total // size),
        "all_reduce": ((n,), {}, (n,), 2 * total),
        "all_to_all": ((4, n // (4 * size * 256), size, 256), dict(scatter_axis=2, gather_axis=1), (4, n // (4 * 256), 1, 256), 2 * total),
    }[name]
    x = world.symmetric(shape)
    out = world.symmetric(out_shape) if name == "all_reduce" else torch.empty(out_shape, dtype=torch.bfloat16, device="cuda")
    mine, result = torch.from_dlpack(x), torch.from_dlpack(out) if name == "all_reduce" else out
    mine.fill_(world.rank + 1)
    sums = size * (size + 1) // 2
    want = {"all_gather": sums * (n // size), "reduce_scatter": sums * (n // size), "all_reduce": sums * n,
            "all_to_all": sums * (n // size)}[name]
    return lambda: getattr(pknumba, name)(world, x, out=out, **arguments), lambda: result.sum(dtype=torch.float64).item() == want, moved


def rates(world, arguments, budget, report):
    """A line for each operator."""
    meet = meeting(world)
    card = copy_rate(world, arguments.rounds, meet)
    for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        if arguments.only not in name or any(world.allgather(budget.spent(name))):
            continue
        call, right, moved = large(world, name, arguments.mib * MIB)
        call()
        world.synchronize()
        assert all(world.allgather(right())), f"{name}: wrong result"
        times_us = timed(world, call, arguments.rounds, 3, meet)
        rate = moved * world.size / (protocol.summary(times_us)[0] * 1e-6)
        report(name, [arguments.mib * MIB // 2], times_us, moved_bytes=moved, gbytes_per_s=round(rate / 1e9, 1),
               copy_gbytes_per_s=round(card / 1e9, 1), share_of_copy=round(rate / card, 3))


def latencies(world, arguments, budget, report):
    """A line for each size: the algorithm that is chosen beside the barrier, and both algorithms."""
    meet = meeting(world)
    for nbytes in SMALL:
        if arguments.only not in "latency" or any(world.allgather(budget.spent(str(nbytes)))):
            continue
        x = torch.full((nbytes // 2,), world.rank + 1, dtype=torch.bfloat16, device="cuda")
        out, found = torch.empty_like(x), {}
        for label, config in (("chosen", None), *((a, CommConfig(algorithm=a, unroll=1)) for a in ("one-shot", "two-shot"))):
            call = partial(pknumba.all_reduce, world, x, out=out, config=config)
            call()
            world.synchronize()
            assert all(world.allgather(bool((out == world.size * (world.size + 1) // 2).all()))), f"{nbytes} {label}: wrong result"
            found[label] = timed(world, call, arguments.rounds, 20)
        barrier = timed(world, meet, arguments.rounds, 20)
        report("all_reduce", [nbytes // 2], found["chosen"], "barrier of one block", barrier,
               **{f"{label.replace('-', '_')}_us": protocol.summary(found[label])[0] for label in ("one-shot", "two-shot")})


def norms(world, arguments, budget, report):
    """A line for each number of rows of 8192: all_reduce_rmsnorm beside our all_reduce and torch's addition and norm."""
    for rows in (1, 8, 64, 512):
        if arguments.only not in "all_reduce_rmsnorm" or any(world.allgather(budget.spent(f"norm {rows}"))):
            continue
        source = torch.Generator("cuda").manual_seed(1)
        residual, weight = (torch.randn(*shape, device="cuda", generator=source).bfloat16() for shape in ((rows, 8192), (8192,)))
        x = torch.full_like(residual, world.rank + 1)
        out, h, total = (torch.empty_like(x) for _ in range(3))

        def ours(x=x, residual=residual, weight=weight, out=out, h=h):
            pknumba.all_reduce_rmsnorm(world, x, residual, weight, out=out, residual_out=h)

        def theirs(x=x, residual=residual, weight=weight, total=total):
            pknumba.all_reduce(world, x, out=total)
            torch.nn.functional.rms_norm(total.add_(residual), (8192,), weight, 1e-6)

        ours(), theirs()
        world.synchronize()
        wide = h.double()
        truth = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * weight.double()
        error = float((out.double() - truth).norm() / truth.norm())
        right = bool((h == (residual.float() + world.size * (world.size + 1) // 2).bfloat16()).all()) and error < 2.0**-8
        assert all(world.allgather(right)), f"norm of {rows} rows: wrong result, error {error}"
        found = [timed(world, call, arguments.rounds, 20) for call in (ours, theirs)]
        report("all_reduce_rmsnorm", [rows, 8192], found[0], "all_reduce, add, torch rms_norm", found[1])


def main():
    """Latencies, then rates. Returns the exit status."""
    parser = protocol.options(__doc__, "collectives.jsonl")
    parser.add_argument("--mib", type=int, default=256, help="MiB for each rank")
    arguments = parser.parse_args()
    budget = protocol.Budget(arguments.budget)
    with World.mpi(executor="gpu", wait_limit_s=30, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        gpus = len(set(world.allgather(world.device)))

        def report(op, shape, times_us, baseline=None, baseline_us=None, **more):
            if world.rank == 0:
                line = protocol.write(arguments.out, op, shape, "bfloat16", times_us, baseline, baseline_us, world=world.size, gpus=gpus,
                                      config="chosen by size", num_sms=world.num_sms, **more)
                print("   ", {k: line[k] for k in more}, flush=True)

        latencies(world, arguments, budget, report)
        norms(world, arguments, budget, report)
        rates(world, arguments, budget, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
