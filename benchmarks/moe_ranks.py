"""Layers of experts over MPI ranks: right on every rank, then their time beside that of their parts.

    mpirun -n 4 python benchmarks/moe_ranks.py                    a GPU for each rank
    ./scripts/mps run -n 4 python benchmarks/moe_ranks.py         ranks that share a GPU

The parts are the two products of this rank's experts alone, on rows that are there already, and an all-to-all of as many rows as travel,
there and back. Time is the maximum over ranks.
"""

import sys

import protocol
import ranks
import torch
from moe import torch_layer

from pknumba import World, all_to_all, grouped_gemm, moe_layer

#: (tokens of all ranks, experts of each, experts, H, F).
LAYERS = [(8192, 2, 8, 4096, 14336), (8192, 8, 32, 7168, 2048)]


def inputs(world, shape):
    """(x, indices, weights of this rank; W1, W2 of all experts; tokens of each expert): every rank draws everybody's."""
    (tokens, top_k, experts, h, f), kind = shape, torch.bfloat16
    source = torch.Generator("cuda").manual_seed(1)
    table = torch.rand(tokens, experts, device="cuda", generator=source).topk(top_k).indices.to(torch.int32)
    w1, w2 = (torch.randn(experts, n, k, device="cuda", generator=source).div_(k ** 0.5).to(kind).transpose(1, 2)
              for n, k in ((f, h), (h, f)))
    mine = torch.tensor_split(torch.arange(tokens, device="cuda"), world.size)[world.rank]
    source.manual_seed(2 + world.rank)
    x, weights = (torch.randn(len(mine), n, device="cuda", generator=source) for n in (h, top_k))
    return (x.to(kind), table[mine].contiguous(), weights.abs()), w1, w2, torch.bincount(table.flatten(), minlength=experts)


def case(world, shape, args):
    """Check and time one layer; rank 0 writes its line. Returns whether the result was right on every rank."""
    (_, top_k, experts, h, f), kind = shape, torch.bfloat16
    given, w1, w2, counts = inputs(world, shape)
    expected = torch_layer(*given, w1, w2).float()
    own = [torch.tensor_split(w, world.size)[world.rank] for w in (w1, w2)]
    own = [w.transpose(1, 2).contiguous().transpose(1, 2) for w in own]
    ends = torch.tensor_split(counts, world.size)[world.rank].cumsum(0).to(torch.int32)
    del w1, w2
    out, rows = torch.empty_like(given[0]), int(ends[-1])
    a, y, z = (torch.randn(rows, n, device="cuda").to(kind) for n in (h, f, h))
    moved = torch.empty(len(out) * top_k // world.size * world.size, h, device="cuda", dtype=kind)
    landed = torch.empty_like(moved)

    def layer():
        moe_layer(world, *given, *own, experts=experts, out=out)

    def products():
        grouped_gemm(world, a, own[0], ends, out=y), grouped_gemm(world, y, own[1], ends, out=z)

    def moves():
        all_to_all(world, moved, out=landed), all_to_all(world, landed, out=moved)
    layer()
    world.synchronize()
    error = ranks.worst_of(world, ((out.float() - expected).norm() / expected.norm()).item())
    if not error < 1e-2:                                                # both round twice on the way
        if world.rank == 0:
            print(f"WRONG moe_layer {shape}: relative error {error:.2e}", flush=True)
        return False
    del expected
    times = ranks.interleaved(world, {"moe_layer": layer, "products": products, "moves": moves}, args.rounds, calls=3)
    gpus = len(set(world.allgather(world.device)))
    if world.rank == 0:
        parts = {part: protocol.summary(times[part])[0] for part in ("products", "moves")}
        summed = [p + m for p, m in zip(times["products"], times["moves"])]
        protocol.write(args.out, "moe_layer", shape, "bfloat16", times["moe_layer"], "its two grouped_gemm and two all_to_all of its rows",
                       summed, error, world=world.size, gpus=gpus, config="chosen", parts_us=parts,
                       sum_of_parts_us=round(sum(parts.values()), 1))
        print("   parts:", *(f"{part} {us:.1f} us" for part, us in parts.items()), flush=True)
    return True


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "moe_ranks.jsonl")
    args = p.parse_args()
    world, right = World.mpi(executor="gpu"), True
    torch.cuda.set_device(world.device)
    budget = protocol.Budget(args.budget)
    for shape in LAYERS:
        name = "x".join(map(str, shape))
        if args.only in name and not any(world.allgather(budget.spent(name))):
            right &= case(world, shape, args)
            torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
