"""Many layers of experts in a row, every rank a process. Prints PASS from rank 0, or what was wrong, with status 1.

    ./scripts/mps run -n 4 -- python tests/gpu/many_layers.py --calls 500

Every call has new tokens and another router's choice in the same arrays; ranks are late in turn; the host waits for nothing in between.
Values are -1, 0 and 1, so every result is exact; each rank checks its own on the device.
"""

import argparse
import sys
import time

import torch

from pknumba import World, moe_layer

TOKENS, TOP_K, EXPERTS, H, F, N = 96, 2, 7, 72, 136, 64


def draw(low, high, shape, seed, dtype):
    """Integers from low to high - 1 on the device."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, device="cuda", dtype=torch.int32).to(dtype)


def expected(x, indices, weights, w1, w2):
    """Two products with max(., 0) between, each rounded; a token's sum over its slots in float32, rounded once."""
    out = torch.zeros(TOKENS, N, device="cuda")
    for j in range(TOP_K):
        e, some = indices[:, j].long().clamp(0, EXPERTS - 1), ((indices[:, j] >= 0) & (indices[:, j] < EXPERTS)).float()
        h = torch.relu(torch.einsum("th,thf->tf", x.float(), w1[e].float())).bfloat16()
        z = torch.einsum("tf,tfn->tn", h.float(), w2[e].float()).bfloat16()
        out += (weights[:, j] * some)[:, None] * z.float()
    return out.bfloat16()


def play(world, calls):
    """(how many results were wrong, seconds)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    w1, w2 = draw(-1, 2, (EXPERTS, H, F), 1, torch.bfloat16), draw(-1, 2, (EXPERTS, F, N), 2, torch.bfloat16)
    own = [torch.tensor_split(w, world.size)[world.rank].contiguous() for w in (w1, w2)]
    x = torch.empty(TOKENS, H, dtype=torch.bfloat16, device="cuda")
    indices = torch.empty(TOKENS, TOP_K, dtype=torch.int32, device="cuda")
    weights, out = torch.empty(TOKENS, TOP_K, device="cuda"), torch.empty(TOKENS, N, dtype=torch.bfloat16, device="cuda")
    wrong, start = torch.zeros((), dtype=torch.int64, device="cuda"), time.perf_counter()
    for call in range(calls):
        seed = 100_000 * world.rank + 10 * call
        x.copy_(draw(-1, 2, x.shape, seed, x.dtype)), indices.copy_(draw(-1, EXPERTS + 1, indices.shape, seed + 1, indices.dtype))
        weights.copy_(draw(0, 3, weights.shape, seed + 2, weights.dtype)), out.fill_(float("nan"))
        if call % 7 == world.rank % 7:
            torch.cuda._sleep(400_000)
        moe_layer(world, x, indices, weights, *own, activation="relu", experts=EXPERTS, out=out)
        wrong += (out != expected(x, indices, weights, w1, w2)).any()
    world.synchronize()
    torch.cuda.synchronize()
    return int(wrong), time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--wait-limit", type=float, default=30, help="seconds")
    arguments = parser.parse_args()
    with World.mpi(executor="gpu", wait_limit_s=arguments.wait_limit, host_limit_s=120) as world:
        torch.cuda.set_device(world.device)
        wrong, seconds = play(world, arguments.calls)
        everyone = world.allgather(wrong)
        if world.rank == 0:
            print(f"{world.size} ranks, {world.num_sms} SMs each, {arguments.calls} calls, {seconds:.1f} s, wrong: {everyone}")
            print("FAIL" if any(everyone) else "PASS", flush=True)
    sys.exit(1 if any(everyone) else 0)


if __name__ == "__main__":
    main()
