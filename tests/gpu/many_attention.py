"""Much attention in a row over a sequence that is spread over ranks, every rank a process. Prints PASS from rank 0, or what was wrong, with
status 1.

    ./scripts/mps run -n 4 -- python tests/gpu/many_attention.py --calls 300

Ring and Ulysses attention, causal and not, with more tiles than a rank has SMs where four share a card. Three sets of inputs follow each
other in the same arrays; ranks are late in turn; the host waits for nothing in between. What a set gives the first time is compared with
float32, and from then on it must be the same bits.
"""

import argparse
import sys
import time

import torch

from pknumba import World, ring_attention, ring_rows, ulysses_attention

HEADS, ROWS, WIDTH, SETS = 8, 640, 128, 3
KINDS = {"ring": (ring_attention, False), "causal ring": (ring_attention, True), "ulysses": (ulysses_attention, False),
         "causal ulysses": (ulysses_attention, True)}
#: Largest error of an element, whose results are averages of normal numbers.
LIMIT = 0.03


def inputs(world, kind, number):
    """(q, k, v of this rank, those of the whole sequence, this rank's rows)."""
    operator, causal = KINDS[kind]
    generator = torch.Generator("cuda").manual_seed(number)
    whole = [torch.randn(1, HEADS, ROWS * world.size, WIDTH, device="cuda", generator=generator).bfloat16() for _ in "qkv"]
    rows = torch.from_numpy(ring_rows(ROWS * world.size, world.size, world.rank, operator is ring_attention and causal)).cuda()
    return [x[:, :, rows].contiguous() for x in whole], whole, rows


def play(world, kind, calls):
    """(how many results were wrong, seconds)."""
    (operator, causal), sets = KINDS[kind], [inputs(world, kind, n) for n in range(SETS)]
    q, k, v = (torch.empty_like(x) for x in sets[0][0])
    out, first = torch.empty_like(q), []
    wrong, start = torch.zeros((), dtype=torch.int64, device="cuda"), time.perf_counter()

    def call(number):
        for target, source in zip((q, k, v), sets[number][0]):
            target.copy_(source)
        out.fill_(float("nan"))
        operator(world, q, k, v, causal=causal, out=out)
    for number, (_, whole, rows) in enumerate(sets):
        call(number)
        first.append(out.clone())
        want = torch.nn.functional.scaled_dot_product_attention(*(x.float() for x in whole), is_causal=causal)[:, :, rows]
        wrong += ~((first[-1].float() - want).abs() < LIMIT).all()
    for turn in range(calls):
        if turn % 7 == world.rank % 7:
            torch.cuda._sleep(400_000)
        call(turn % SETS)
        wrong += (out != first[turn % SETS]).any()
    world.synchronize()
    torch.cuda.synchronize()
    return int(wrong), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--only", default="")
    parser.add_argument("--wait-limit", type=float, default=30, help="seconds")
    arguments = parser.parse_args()
    failed = False
    with World.mpi(executor="gpu", wait_limit_s=arguments.wait_limit, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        for kind in (kind for kind in KINDS if arguments.only in kind):
            wrong, seconds = play(world, kind, arguments.calls)
            everyone = world.allgather(wrong)
            failed |= any(everyone)
            if world.rank == 0:
                print(f"{kind}: {world.size} ranks, {world.num_sms} SMs each, {arguments.calls} calls, {seconds:.1f} s, wrong: {everyone}",
                      flush=True)
        if world.rank == 0:
            print("FAIL" if failed else "PASS", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
