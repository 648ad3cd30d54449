"""Collectives against NCCL (through torch.distributed), from 8 bytes to 1 GiB; one GPU for each rank.

    mpirun -n 2 python benchmarks/collectives_nccl.py

A size is the bytes of the larger of a rank's two arrays. Ours reads and writes symmetric arrays; ``ordinary_us`` is the same call on
ordinary ones. Up to 1 MiB both sides replay a CUDA graph of calls in a row (kernels alone), and ``*_eager_us`` is what eager
calls take, host time included; above, calls in a row. Results are checked first.
"""

import sys
from functools import partial

import protocol
import torch
import torch.distributed as dist
from ranks import beside_nccl, guarded, interleaved

import pknumba

MIB = 1 << 20
SIZES = [8, 1024, 16384, 131072, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB]


class Collective:
    """One collective on bfloat16 arrays of ``nbytes``: ``ours``, ``theirs`` and whether the result is right."""

    #: Bytes that a rank sends, as a share of the size, for a world of n.
    sent = staticmethod(lambda n: (n - 1) / n)

    def __init__(self, world, nbytes):
        self.world, n = world, max(world.size, nbytes // 2 // world.size * world.size)
        whole, part = (n,), (n // world.size,)
        given, gotten = self.shapes(whole, part)
        self.x = torch.full(given, world.rank + 1, dtype=torch.bfloat16, device="cuda")
        self.memory = world.symmetric(given, "bfloat16")
        protocol.as_torch(self.memory.local).copy_(self.x)
        self.results = world.symmetric(gotten, "bfloat16")
        self.out, self.theirs_out = (torch.empty(gotten, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def ours(self):
        """Ours, of symmetric arrays."""
        self._call(self.memory, self.results)

    def ordinary(self):
        """Ours, of ordinary ones."""
        self._call(self.x, self.out)

    def _call(self, x, out):
        stream = torch.cuda.current_stream().cuda_stream           # a symmetric array does not say which stream works on it
        getattr(pknumba, self.name)(self.world, x, out=out, stream=stream)

    def right(self):
        """Whether ours equals theirs, which NCCL's users trust."""
        self.ours(), self.ordinary(), self.theirs()
        self.world.synchronize()
        torch.cuda.synchronize()
        return all(bool((found == self.theirs_out).all()) for found in (self.out, protocol.as_torch(self.results.local)))

    def close(self):
        """Give symmetric memory back."""
        self.memory.close(), self.results.close()


class AllReduce(Collective):
    """Sum on every rank."""

    name, sent = "all_reduce", staticmethod(lambda n: 2 * (n - 1) / n)

    @staticmethod
    def shapes(whole, part):
        """(given, gotten)."""
        return whole, whole

    def theirs(self):
        """NCCL works in place; values grow past what is checked, and time does not depend on them."""
        if not hasattr(self, "filled"):
            self.theirs_out.copy_(self.x)
            self.filled = True
        dist.all_reduce(self.theirs_out)


class AllGather(Collective):
    """Everybody's part on every rank."""

    name = "all_gather"

    @staticmethod
    def shapes(whole, part):
        """(given, gotten)."""
        return part, whole

    def theirs(self):
        """Theirs."""
        dist.all_gather_into_tensor(self.theirs_out, self.x)


class ReduceScatter(Collective):
    """A part of the sum on every rank."""

    name = "reduce_scatter"

    @staticmethod
    def shapes(whole, part):
        """(given, gotten)."""
        return whole, part

    def theirs(self):
        """Theirs."""
        dist.reduce_scatter_tensor(self.theirs_out, self.x)


class AllToAll(Collective):
    """A part of everybody's on every rank."""

    name = "all_to_all"

    @staticmethod
    def shapes(whole, part):
        """(given, gotten)."""
        return whole, whole

    def theirs(self):
        """Theirs."""
        dist.all_to_all_single(self.theirs_out, self.x)


COLLECTIVES = {kind.name: kind for kind in (AllReduce, AllGather, ReduceScatter, AllToAll)}


def case(world, kind, nbytes, rounds, out):
    """Check and time one collective of one size; rank 0 writes its line. Returns whether it was right."""
    op = kind(world, nbytes)
    if not all(world.allgather(op.right())):
        print(f"WRONG {op.name} {nbytes}", flush=True)
        return False
    variants = {"ours": op.ours, "theirs": op.theirs, "ordinary": op.ordinary}
    small = nbytes <= MIB
    times = interleaved(world, variants, rounds, 20 if small else 4, graphs=small)
    eager = interleaved(world, variants, 10, 20) if small else None
    if world.rank == 0:
        sent = kind.sent(world.size) * nbytes
        more = {f"{name}_eager_us": protocol.summary(t)[0] for name, t in eager.items()} if eager else {}
        more["ordinary_us"] = protocol.summary(times["ordinary"])[0]
        protocol.write(out, op.name, [op.x.numel()], "bfloat16", times["ours"], "NCCL", times["theirs"], None, world=world.size,
                       gpus=world.size, config="chosen by size", nbytes=nbytes, how="graph" if small else "eager",
                       sent_gbytes_per_s=round(sent / protocol.summary(times["ours"])[0] * 1e-3, 1), **more)
    op.close()
    return True


def cases(world, args, budget):
    """Every collective and size that the flags name. Returns whether all were right."""
    right = True
    for nbytes in SIZES:
        for kind in COLLECTIVES.values():
            name = f"{kind.name} {nbytes}"
            rounds = min(args.rounds, 30 if nbytes <= 64 * MIB else 10)
            if args.only in name:
                right &= guarded(world, name, budget, partial(case, world, kind, nbytes, rounds, args.out))
    return right


def main():
    """Run what the flags name. Returns the exit status."""
    args = protocol.options(__doc__, "multigpu.jsonl").parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)))


if __name__ == "__main__":
    sys.exit(main())
