"""Attention over MPI ranks: right on rows of the first and the last head, then its time beside that of its parts.

    mpirun -n 4 python benchmarks/attention_ranks.py                    a GPU for each rank
    ./scripts/mps run -n 4 python benchmarks/attention_ranks.py         ranks that share a GPU

The parts of ring and Ulysses attention are attention of this rank's share alone, on keys that are there already, and the all-gather or
all-to-all of what travels; for decode_attention, attention of its own keys. Time is the maximum over ranks.
"""

import sys

import protocol
import ranks
import torch

from pknumba import (World, all_gather, all_to_all, attention, decode_attention, ring_attention, ring_rows, ulysses_attention)

#: (batch, query heads, heads of K and V, rows of the whole sequence, width).
SHAPES = [(1, 16, 16, 8192, 128), (1, 32, 8, 16384, 128)]
#: Rows of a head that are checked, and the largest relative error that passes.
ROWS, LIMIT = 256, 5e-3


def inputs(world, shape, mine_of):
    """(q, k, v of this rank; of the whole sequence): every rank draws everybody's."""
    b, h, p, s, d = shape
    source = torch.Generator("cuda").manual_seed(1)
    whole = [torch.randn(b, n, s, d, device="cuda", generator=source).bfloat16() for n in (h, p, p)]
    rows = torch.from_numpy(mine_of(s)).cuda()
    return [x[:, :, rows].contiguous() for x in whole], whole, rows


def error(o, whole, rows, causal):
    """Relative error of some rows of the first and the last head of o, whose rows are those of the sequence."""
    (q, k, v), worst = whole, 0.0
    chosen = torch.linspace(0, len(rows) - 1, min(ROWS, len(rows)), device="cuda").long()
    for head in (0, q.shape[1] - 1):
        pair = head * k.shape[1] // q.shape[1]
        scores = q[0, head, rows[chosen]].float() @ k[0, pair].float().T * q.shape[3] ** -0.5
        if causal:
            scores.masked_fill_(torch.arange(k.shape[2], device="cuda") > rows[chosen, None], float("-inf"))
        want = torch.softmax(scores, -1) @ v[0, pair].float()
        worst = max(worst, ((o[0, head, chosen].float() - want).norm() / want.norm()).item())
    return worst


def spread(world, name, shape, causal):
    """(calls by name, error) of ring or Ulysses attention."""
    size, rank, (b, h, p, _, d) = world.size, world.rank, shape
    ring = name == "ring_attention"
    mine, whole, rows = inputs(world, shape, lambda s: ring_rows(s, size, rank, ring and causal))
    o = torch.empty_like(mine[0])
    lse = torch.empty(o.shape[:3], device="cuda")
    if ring:
        def call():
            ring_attention(world, *mine, causal=causal, out=o, lse=lse)
        near = [mine[0], *whole[1:]]
        gathered = [torch.empty(size * b * p, len(rows), d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        moved = [x.reshape(b * p, len(rows), d) for x in mine[1:]]

        def move():
            for x, y in zip(moved, gathered):
                all_gather(world, x, out=y)
    else:
        def call():
            ulysses_attention(world, *mine, causal=causal, out=o)
        near = [x[:, rank * n // size:(rank + 1) * n // size].contiguous() for x, n in zip(whole, (h, p, p))]

        def move():
            for x in (*mine, o):
                all_to_all(world, x, scatter_axis=1, gather_axis=2)
    call()
    world.synchronize()
    out, sums = torch.empty_like(near[0]), torch.empty(near[0].shape[:3], device="cuda")
    alone = causal and not ring                                     # a ring's share of causal work is half of all
    return {name: call, "attention": lambda: attention(world, *near, causal=alone, out=out, lse=sums), "moves": move}, \
        error(o, whole, rows, causal)


def decode(world, shape):
    """(calls by name, error) of decode attention, one query for each of eight sequences."""
    b, h, p, s, d = 8, *shape[1:]
    mine, whole, rows = inputs(world, (b, h, p, s, d), lambda s: ring_rows(s, world.size, world.rank))
    q = whole[0][:, :, 0].contiguous()
    o, lse = decode_attention(world, q, *mine[1:])
    world.synchronize()
    whole[0] = q[:, :, None]
    found = error(o[:, :, None], whole, torch.zeros(1, dtype=torch.long, device="cuda"), False)
    four = q[:, :, None]
    out, sums = torch.empty_like(four), torch.empty(four.shape[:3], device="cuda")
    return {"decode_attention": lambda: decode_attention(world, q, *mine[1:], out=o, lse=lse),
            "attention": lambda: attention(world, four, *mine[1:], out=out, lse=sums)}, found


def case(world, name, shape, causal, args):
    """Check and time one case; rank 0 writes its line. Returns whether the result was right on every rank."""
    calls, found = decode(world, shape) if name == "decode_attention" else spread(world, name, shape, causal)
    found = ranks.worst_of(world, found)
    if not found < LIMIT:
        if world.rank == 0:
            print(f"WRONG {name} {shape} causal={causal}: relative error {found:.2e}", flush=True)
        return False
    times = ranks.interleaved(world, calls, args.rounds, calls=3)
    gpus = len(set(world.allgather(world.device)))
    if world.rank == 0:
        parts = {part: protocol.summary(t)[0] for part, t in times.items() if part != name}
        if causal and name == "ring_attention":
            parts["attention"] /= 2
        protocol.write(args.out, name, shape, "bfloat16", times[name], None, None, found, world=world.size, gpus=gpus, config="chosen",
                       layout="causal" if causal else "full", parts_us=parts, sum_of_parts_us=round(sum(parts.values()), 1))
        print("   parts:", *(f"{part} {us:.1f} us" for part, us in parts.items()), flush=True)
    return True


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "attention_ranks.jsonl")
    args = p.parse_args()
    world, right = World.mpi(executor="gpu"), True
    torch.cuda.set_device(world.device)
    budget = protocol.Budget(args.budget)
    for shape in SHAPES:
        for name, causal in (("ring_attention", False), ("ring_attention", True), ("ulysses_attention", False),
                             ("ulysses_attention", True), ("decode_attention", False)):
            label = f"{name}-{'x'.join(map(str, shape))}-{'causal' if causal else 'full'}"
            if args.only in label and not any(world.allgather(budget.spent(label))):
                right &= case(world, name, shape, causal, args)
                torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
