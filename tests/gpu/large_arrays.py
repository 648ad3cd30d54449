"""Operators on arrays above 4 GiB for each rank, two ranks as threads of one GPU. Prints a line for each, then PASS or FAIL.

    python tests/gpu/large_arrays.py --gib 4.25

Elements are small integers that depend on their place and on the rank, so that results are exact and an address that wrapped around
gives another number. Needs about eight times as much memory as one array.
"""

import argparse
import sys
import time

import torch

import pknumba
from pknumba import World

#: Operator -> (arguments, function (every rank's x as a function, size, rank, n) of the result's element i).
CASES = {
    "all_reduce": ({}, lambda x, size, rank, n, i: sum(x(r, i) for r in range(size))),
    "all_gather": ({}, lambda x, size, rank, n, i: x(i // n, i % n)),
    "reduce_scatter": ({}, lambda x, size, rank, n, i: sum(x(r, i + rank * (n // size)) for r in range(size))),
    "all_to_all": (dict(scatter_axis=0, gather_axis=0),
                   lambda x, size, rank, n, i: x(i // (n // size), i % (n // size) + rank * (n // size))),
    "broadcast": (dict(root=1), lambda x, size, rank, n, i: x(1, i)),
}
#: Elements that are looked at in one piece.
CHUNK = 1 << 26


def element(rank, i):
    """Element i of a rank's array: period 61 * 67 in units of 97 elements, so that no power of two repeats it."""
    return (i % 61 + i // 97 % 67 + 31 * rank) % 64


def pieces(n):
    """(slice, its element numbers as int64 on the device) of n elements."""
    for start in range(0, n, CHUNK):
        end = min(start + CHUNK, n)
        yield slice(start, end), torch.arange(start, end, device="cuda")


def wrong(out, n, rank, size, define):
    """How many elements of a result are wrong."""
    def x(r, i):
        ranks = r if isinstance(r, int) else r.to(torch.int64)
        return element(ranks, i)
    return sum(int((out[part] != define(x, size, rank, n, i)).sum()) for part, i in pieces(out.numel()))


def play(world, name, n, symmetric):
    """(wrong elements, milliseconds) of an operator on n elements."""
    arguments, define = CASES[name]
    memory = world.symmetric((n,), "bfloat16") if symmetric else torch.empty(n, dtype=torch.bfloat16, device="cuda")
    x = torch.from_dlpack(memory) if symmetric else memory
    for part, i in pieces(n):
        x[part] = element(world.rank, i).bfloat16()
    out = getattr(pknumba, name)(world, memory, **arguments)
    world.synchronize()
    start = time.perf_counter()
    getattr(pknumba, name)(world, memory, out=out, **arguments)
    world.synchronize()
    took = 1e3 * (time.perf_counter() - start)
    found = wrong(out if isinstance(out, torch.Tensor) else torch.from_dlpack(out), n, world.rank, world.size, define)
    if symmetric:
        memory.close()
    return found, took


def products(world, name, n):
    """(wrong elements, milliseconds) of an operator whose result has n x n elements; values are -1, 0 and 1, so sums are exact."""
    k, size, rank = 64, world.size, world.rank
    def signs(rows, cols, seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        return torch.randint(-1, 2, (rows, cols), generator=generator, device="cuda", dtype=torch.int8).bfloat16()
    pairs = [(signs(n, k, 10 * r), signs(n, k, 10 * r + 1)) for r in range(size)]
    a, b = pairs[rank]
    gathers, share = name == "all_gather_gemm", slice(rank * (n // size), (rank + 1) * (n // size))
    mine, call = (a[share] if gathers else a).contiguous(), getattr(pknumba, name)
    out = call(world, mine, b.T)
    world.synchronize()
    start = time.perf_counter()
    call(world, mine, b.T, out=out)
    world.synchronize()
    took, bad = 1e3 * (time.perf_counter() - start), 0
    whole = torch.cat([torch.tensor_split(x, size)[r] for r, (x, _) in enumerate(pairs)])
    for first in range(0, out.shape[0], 4096):
        rows = slice(first, min(first + 4096, out.shape[0]))
        if name == "all_gather_gemm":
            truth = (whole[rows].float() @ b.T.float()).bfloat16()
        else:
            each = [(x[share] if name != "gemm_all_reduce" else x)[rows].float() @ y.T.float() for x, y in pairs]
            truth = torch.cat(each, 1).bfloat16() if name == "gemm_all_to_all" else sum(each).bfloat16()
        bad += int((out[rows] != truth).sum())
    return bad, took


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4.25, help="GiB of each rank's x")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    n = int(arguments.gib * 2**29) // 8 * 8 + 6                     # even, and no multiple of a unit
    failed = False
    torch.cuda.init()                                                # before the world: ranks then work on streams of their own
    for name in (name for name in CASES if arguments.only in name):
        for symmetric in (False, True):
            if symmetric and name == "broadcast":
                continue                                             # in place: x would be overwritten
            with World.local(2, executor="gpu", wait_limit_s=20) as world:
                results = world.run(lambda w, name=name, symmetric=symmetric: play(w, name, n, symmetric))
            bad, took = [b for b, _ in results], max(t for _, t in results)
            failed |= any(bad)
            print(f"{name} {'symmetric' if symmetric else 'ordinary'}: {n} elements, {took:.1f} ms, wrong: {bad}", flush=True)
            torch.cuda.empty_cache()
    for name in ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm", "gemm_all_to_all"):
        if arguments.only in name:
            side = int((arguments.gib * 2**29) ** 0.5) // 16 * 16
            with World.local(2, executor="gpu", wait_limit_s=20) as world:
                results = world.run(lambda w, name=name, side=side: products(w, name, side))
            failed |= any(b for b, _ in results)
            print(f"{name}: {side} x {side}, {max(t for _, t in results):.1f} ms, wrong: {[b for b, _ in results]}", flush=True)
            torch.cuda.empty_cache()
    print("FAIL" if failed else "PASS", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
