"""Many calls in a row of the operators that span nodes, every rank a process. Prints PASS from rank 0, or what was wrong, with status 1.

    PKNUMBA_NODE_SIZE=2 ./scripts/mps run -n 4 -- python tests/gpu/many_nodes.py --calls 50
    PKNUMBA_NODE_SIZE=1 torchrun --nproc-per-node 2 tests/gpu/many_nodes.py             # engine nccl; a GPU for each rank

Every call has new values in the same arrays; ranks are late in turn. Values are small integers, so every result is exact.
"""

import argparse
import os
import sys
import time

import torch

import pknumba
import pknumba.templates.ringing
from pknumba import World
from pknumba.templates.forms import share

#: Operator -> (shape of x for a world of that size, arguments, function (every rank's x, rank) of the result or None).
CASES = {
    "all_reduce": lambda n: ((1000,), {}, lambda xs, r: sum(xs)),
    "all_reduce of more": lambda n: ((700_001,), {}, lambda xs, r: sum(xs)),
    "all_gather": lambda n: ((16, 333), dict(axis=1), lambda xs, r: torch.cat(xs, 1)),
    "all_gather of rows": lambda n: ((16, 333), {}, lambda xs, r: torch.cat(xs)),
    "reduce_scatter": lambda n: ((16 * n, 333), dict(axis=0), lambda xs, r: sum(xs)[16 * r:16 * r + 16]),
    "reduce_scatter of columns": lambda n: ((33, 16 * n), dict(axis=1), lambda xs, r: sum(xs)[:, 16 * r:16 * r + 16]),
    "all_to_all": lambda n: ((2, 48, 8 * n, 64), dict(scatter_axis=2, gather_axis=1),
                             lambda xs, r: torch.cat([x[:, :, 8 * r:8 * r + 8] for x in xs], 1)),
    "broadcast": lambda n: ((50_000,), dict(root=n - 1), lambda xs, r: xs[n - 1]),
    "reduce": lambda n: ((50_000,), dict(root=1), lambda xs, r: sum(xs) if r == 1 else None),
}
PRODUCTS = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
M, N, K = 650, 384, 256


def draw(shape, seed, rank, most=9, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(1000 * rank + seed)
    return torch.randint(-most, most + 1, shape, generator=generator, device="cuda", dtype=torch.int32).to(dtype)


def collective(world, name, call):
    """Whether the result of a call was wrong, on the device."""
    shape, arguments, define = CASES[name](world.size)
    xs = [draw(shape, call, r) for r in range(world.size)]
    want, found = define(xs, world.rank), getattr(pknumba, name.split()[0])(world, xs[world.rank], **arguments)
    return (found != want).any() if want is not None else torch.zeros((), dtype=torch.bool, device="cuda")


def product(world, name, call):
    """As collective."""
    As, Bs = ([draw(shape, call + i, r, 1, torch.bfloat16) for r in range(world.size)] for i, shape in enumerate(((M, K), (K, N))))
    first, rows = share(M, world.size, world.rank)
    A, B = As[world.rank], Bs[world.rank]
    if name == "all_gather_gemm":
        found = pknumba.all_gather_gemm(world, As[0][first:first + rows].clone(), B, rows=M)
        return (found != (As[0].float() @ B.float()).bfloat16()).any()
    terms = [(a.float() @ b.float()).bfloat16().float() for a, b in zip(As, Bs)]
    groups = [sum(terms[r] for r in group).bfloat16().float() for group in world.layout.groups] if world.spans else terms
    want = sum(groups).bfloat16()
    want = want[first:first + rows] if name == "gemm_reduce_scatter" else want
    return (getattr(pknumba, name)(world, A, B) != want).any()


def ring(world, name, call):
    """As collective, for ring_attention, causal and not; within a hundredth."""
    rows, causal = 128 * world.size, call % 2 == 1
    generators = (torch.Generator("cuda").manual_seed(3 * call + i) for i in range(3))
    q, k, v = (torch.randn((1, 4, rows, 64), generator=g, device="cuda").half() for g in generators)
    mine = torch.from_numpy(pknumba.templates.ringing.ring_rows(rows, world.size, world.rank, causal)).cuda()
    o, _ = pknumba.ring_attention(world, *(x[:, :, mine].contiguous() for x in (q, k, v)), causal=causal)
    want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)[:, :, mine]
    return ((o.float() - want).abs() > 1e-2).any()


def experts(world, name, call):
    """As collective, for moe_layer: two experts on each rank, two for each token; within two hundredths of the largest."""
    def normal(seed, *shape):
        return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    total, mine = 2 * world.size, slice(2 * world.rank, 2 * world.rank + 2)
    x, w1, w2 = normal(world.rank + 7 * call, 64, 128).half(), normal(1, total, 128, 256).half() / 8, normal(2, total, 256, 128).half() / 8
    chosen = torch.stack([torch.randperm(total, device="cuda")[:2] for _ in range(64)]).int()
    weights = normal(3 + call, 64, 2).abs()
    out = pknumba.moe_layer(world, x, chosen, weights, w1[mine].contiguous(), w2[mine].contiguous(), activation="relu")
    want = torch.zeros(64, 128, device="cuda")
    for j in range(2):
        e = chosen[:, j].long()
        hidden = torch.einsum("th,thf->tf", x.float(), w1[e].float()).relu()
        want += weights[:, j:j + 1] * torch.einsum("tf,tfn->tn", hidden, w2[e].float())
    return ((out.float() - want).abs() > 0.02 * want.abs().max()).any()


def play(world, arguments):
    """Every operator; whether a result was wrong on any rank."""
    torch.cuda.set_device(world.device)
    failed = False
    if world.rank == 0:
        print(world, world.across, flush=True)
    uneven = world.spans and not world.layout.even
    more = {"ring_attention": ring, "moe_layer": experts}
    for name in (*CASES, *PRODUCTS, *more):
        if arguments.only not in name or uneven and name in ("all_to_all", *more):
            continue
        start, wrong = time.perf_counter(), torch.zeros((), dtype=torch.int64, device="cuda")
        for call in range(arguments.calls):
            if call % 7 == world.rank % 7:
                torch.cuda._sleep(200_000)
            wrong += more.get(name, product if name in PRODUCTS else collective)(world, name, call)
        world.synchronize()
        everyone = world.allgather((int(wrong), world.across.engine.sent if world.spans else 0))
        failed |= any(n for n, _ in everyone)
        if world.rank == 0:
            print(f"{name}: {world.size} ranks, {arguments.calls} calls, {time.perf_counter() - start:.1f} s, wrong: "
                  f"{[n for n, _ in everyone]}, sent so far: {sum(sent for _, sent in everyone)}", flush=True)
    if world.rank == 0:
        print("FAIL" if failed else "PASS", flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, help="ranks as threads of this process")
    arguments = parser.parse_args()
    options = dict(executor="gpu", wait_limit_s=20, host_limit_s=40)
    if arguments.threads:
        torch.cuda.init()
        with World.local(arguments.threads, **options) as world:
            sys.exit(any(world.run(play, arguments)))
    make = World.mpi
    if "TORCHELASTIC_RUN_ID" in os.environ:
        torch.distributed.init_process_group("gloo")
        make = World.torch
    with make(**options) as world:
        failed = play(world, arguments)
    sys.exit(failed)


if __name__ == "__main__":
    main()
