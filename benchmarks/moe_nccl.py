"""Layers of experts over ranks against torch and NCCL; one GPU for each rank.

    mpirun -n 2 python benchmarks/moe_nccl.py

The rival: entries are sorted by expert, counts are exchanged, rows go to their experts' ranks by all-to-all, are sorted there, go through
torch._grouped_mm, silu and torch._grouped_mm, go back by all-to-all, are weighed and added. All-to-all wants its counts on the host, so
the host waits for the device once a layer; a second rival knows them beforehand, as no router does. Some rows of the result are
checked against float32 first.
"""

import sys
from functools import partial

import protocol
import torch
import torch.distributed as dist
from moe_ranks import LAYERS
from ranks import beside_nccl, guarded
from rivals import Ours, compare, room

from pknumba import moe_layer

#: Layers beside those of ``moe_ranks``: (tokens of all ranks, experts of each, experts, H, F).
MORE = [(16384, 8, 256, 7168, 2048), (4096, 8, 64, 2048, 1408), (512, 8, 32, 7168, 2048)]
#: Tokens of each rank that are checked, and the largest relative error that passes: both sides round rows three times.
CHECKED, LIMIT = 32, 1e-2


class Experts:
    """The layer of torch and NCCL; ``known``: how many rows go where is known beforehand."""

    def __init__(self, world, x, indices, weights, w1, w2, experts, known):
        self.size, self.x, self.indices, self.weights, self.w1, self.w2 = world.size, x, indices, weights, w1, w2
        self.experts, self.known, self.splits = experts, known, None
        self.ids = torch.arange(experts // world.size, device=x.device).repeat(world.size)
        self.ones = torch.ones(indices.numel(), dtype=torch.int64, device=x.device)

    def route(self):
        """(entries in the order of their experts, rows that come from each rank for each expert here)."""
        flat = self.indices.flatten().long()
        order = flat.argsort(stable=True)
        leaving = self.ones.new_zeros(self.experts).scatter_add_(0, flat, self.ones)
        coming = torch.empty_like(leaving)
        dist.all_to_all_single(coming, leaving)
        if not (self.known and self.splits):
            self.splits = torch.stack([coming, leaving]).view(2, self.size, -1).sum(2).tolist()
        return order, coming

    def __call__(self):
        (order, counts), mm = self.route(), torch._grouped_mm
        coming, leaving = self.splits
        sent = self.x[order // self.indices.shape[1]]
        came = sent.new_empty(sum(coming), sent.shape[1])
        dist.all_to_all_single(came, sent, coming, leaving)
        turn = self.ids.repeat_interleave(counts, output_size=sum(coming)).argsort(stable=True)
        ends = counts.view(self.size, -1).sum(0).cumsum(0).to(torch.int32)
        z = mm(torch.nn.functional.silu(mm(came[turn], self.w1, offs=ends)), self.w2, offs=ends)
        back, home, slots = torch.empty_like(z), *(z.new_empty(len(sent), z.shape[1]) for _ in range(2))
        back[turn] = z
        dist.all_to_all_single(home, back, leaving, coming)
        slots[order] = home
        self.out = (slots.view(*self.indices.shape, -1).float() * self.weights[..., None]).sum(1).to(z.dtype)


def inputs(world, shape):
    """(x, indices, weights of this rank's tokens, W1, W2 of its experts), which differ from rank to rank."""
    tokens, top_k, experts, h, f = shape
    source, own, mine = torch.Generator("cuda").manual_seed(1 + world.rank), tokens // world.size, experts // world.size
    x, weights = (torch.randn(own, n, device="cuda", generator=source) for n in (h, top_k))
    indices = torch.rand(own, experts, device="cuda", generator=source).topk(top_k).indices.to(torch.int32).contiguous()
    w1, w2 = (torch.randn(mine, n, k, device="cuda", generator=source).div_(k ** 0.5).bfloat16() for n, k in ((f, h), (h, f)))
    return x.bfloat16(), indices, weights.abs(), w1.transpose(1, 2), w2.transpose(1, 2)


def truth(world, rows, x, indices, weights, w1, w2):
    """The layer's result for some rows of this rank, in float32; every rank adds what its experts say of everybody's. Collective."""
    def everybodys(part):
        whole = part.new_empty(world.size * len(part), *part.shape[1:])
        dist.all_gather_into_tensor(whole, part.contiguous())
        return whole
    xs, table, shares = everybodys(x[rows]), everybodys(indices[rows]), everybodys(weights[rows])
    total = torch.zeros(len(xs), w2.shape[2], device=x.device)
    for expert in range(len(w1)):
        token, slot = (table == world.rank * len(w1) + expert).nonzero(as_tuple=True)
        y = torch.nn.functional.silu(xs[token].float() @ w1[expert].float()) @ w2[expert].float()
        total.index_add_(0, token, y * shares[token, slot, None])
    dist.all_reduce(total)
    return total[world.rank * len(rows):(world.rank + 1) * len(rows)]


def case(world, shape, args):
    """Check and time one layer. Returns whether ours was right on every rank."""
    tokens, top_k, experts, h, f = shape
    given = inputs(world, shape)
    rows = torch.linspace(0, len(given[0]) - 1, min(CHECKED, len(given[0])), device="cuda").long()
    known, out = truth(world, rows, *given), torch.empty_like(given[0])
    names = {"NCCL all-to-all, torch sort and _grouped_mm": False, "NCCL all-to-all, torch sort and _grouped_mm, counts known": True}
    makes = {name: partial(Experts, world, *given, experts, early) for name, early in names.items()}
    with room(world) as part:
        ours = Ours(partial(moe_layer, part, *given, experts=experts, out=out), out)
        return compare(part, args, "moe_layer", shape, ours, makes, seconds=2.0, limit=LIMIT, flops=4 * tokens * top_k * h * f / world.size,
                       error=lambda y: ((y[rows].float() - known).norm() / known.norm()).item())


def cases(world, args, budget):
    """Every layer that the flags name. Returns whether all were right."""
    right = True
    for shape in (*LAYERS, *MORE):
        name = f"moe_layer {'x'.join(map(str, shape))}"
        if args.only in name and not (shape[0] % world.size or shape[2] % world.size):
            right &= guarded(world, name, budget, partial(case, world, shape, args))
    return right


def main():
    """Run the layers that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    p.set_defaults(rounds=20)
    args = p.parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)))


if __name__ == "__main__":
    sys.exit(main())
