"""Products of groups of rows against torch._grouped_mm, and layers of experts against their two products alone and against torch;
interleaved in one run; one JSON line per case.

    python benchmarks/moe.py                        every case
    python benchmarks/moe.py --only half            cases whose name (8192x32x7168x2048-half-nt, layer-...) contains that
"""

import sys

import protocol
import torch

from pknumba import GroupedGemmConfig, World, grouped_gemm, moe_layer
from pknumba.config import best_groups, rival_groups

#: (tokens, experts, K, N).
SHAPES = [(8192, 32, 7168, 2048), (8192, 32, 2048, 7168), (4096, 8, 4096, 14336), (16384, 64, 2048, 1408), (1024, 32, 7168, 2048)]
#: Layers: (tokens, experts of each, experts, H, F).
LAYERS = [(4096, 2, 8, 4096, 14336), (2048, 8, 64, 2048, 1408), (4096, 8, 32, 7168, 2048)]
#: How tokens are spread over experts.
SPREADS = ("even", "random", "half")


def lengths(spread, tokens, experts):
    """Rows of each group: equal, multinomial, or one group with half of all rows."""
    if spread == "random":
        picks = torch.randint(experts, (tokens,), generator=torch.Generator().manual_seed(0))
        return torch.bincount(picks, minlength=experts)
    rest = tokens if spread == "even" else tokens - tokens // 2
    many = experts if spread == "even" else experts - 1
    found = torch.tensor([rest // many + (i < rest % many) for i in range(many)])
    return found if spread == "even" else torch.cat([found[:many // 2], torch.tensor([tokens // 2]), found[many // 2:]])


def config_of(text):
    """GroupedGemmConfig from "tile_m=128,stages=4"; None from nothing."""
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    changes = {key: int(value) if value.isdigit() else value == "True" if value in ("True", "False") else value for key, value in pairs}
    return GroupedGemmConfig().replace(**changes) if changes else None


def error_of(c, a, b, ends):
    """Relative error against float64, over some rows of every group."""
    start, wrong, norm = 0, 0.0, 0.0
    for matrix, end in zip(b, ends.tolist()):
        rows = torch.arange(start, end, max(1, (end - start) // 16), device=a.device)
        expected = a[rows].double() @ matrix.double()
        wrong, norm, start = wrong + (c[rows].double() - expected).square().sum(), norm + expected.square().sum(), end
    return (wrong / norm).sqrt().item()


def case(world, shape, spread, layout, args):
    """Check and time one case; writes its line. Returns whether the result was right."""
    (t, experts, k, n), kind = shape, torch.bfloat16
    est, sets = 2 * t * n * k / 600e12 + 2e-6, []
    ends = lengths(spread, t, experts).cumsum(0).to(torch.int32).cuda()
    for _ in range(protocol.rotation(2 * (t * k + experts * k * n + t * n), est)):
        A = torch.randn(t, k, device="cuda", dtype=kind)
        B = torch.randn(experts, n, k, device="cuda", dtype=kind).transpose(1, 2) if layout == "nt" else \
            torch.randn(experts, k, n, device="cuda", dtype=kind)
        sets.append((A, B, torch.full((t, n), float("nan"), device="cuda", dtype=kind)))
    config = config_of(args.config)
    chosen = config or best_groups(t, experts, n, k, world.num_sms)
    rival = None if config else rival_groups(chosen, t, experts, n, world.num_sms)
    for A, B, C in sets:
        grouped_gemm(world, A, B, ends, out=C, config=config)
    world.synchronize()
    error = max(error_of(C, A, B, ends) for A, B, C in sets)
    if not error < 4e-3:                                                # half an ulp is 3.9e-3
        print(f"WRONG {shape} {spread} {layout}: relative error {error:.2e}", flush=True)
        return False
    variants = {"pknumba": [lambda A=A, B=B, C=C: grouped_gemm(world, A, B, ends, out=C, config=config) for A, B, C in sets],
                "torch": [lambda A=A, B=B: torch._grouped_mm(A, B, offs=ends) for A, B, _ in sets]}
    times, how = protocol.interleaved(variants, est, rounds=args.rounds)
    flops = 2 * t * n * k
    tflops = {name: round(flops / protocol.summary(x)[0] * 1e-6, 1) for name, x in times.items()}
    protocol.write(args.out, "grouped_gemm", shape, "bfloat16", times["pknumba"], "torch._grouped_mm", times["torch"], error,
                   config=vars(chosen), rival=rival and vars(rival), chosen="by flag" if config else "by shape", layout=layout,
                   spread=spread, how=how, sets=len(sets), tflops=tflops["pknumba"], baseline_tflops=tflops["torch"],
                   **protocol.energy(args, variants, est, "pknumba", "torch"))
    return True


def torch_layer(x, indices, weights, w1, w2):
    """The layer as torch has it: sort the slots, gather, two grouped products, weigh, add."""
    flat = indices.flatten()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=w1.shape[0]).cumsum(0).to(torch.int32)
    h = torch.nn.functional.silu(torch._grouped_mm(x[order // indices.shape[1]], w1, offs=ends))
    z = torch._grouped_mm(h, w2, offs=ends)
    back = torch.empty_like(z)
    back[order] = z
    return (back.view(*indices.shape, -1).float() * weights[..., None]).sum(1).to(x.dtype)


def layer(world, shape, args):
    """Check and time one layer on one rank; writes two lines. Returns whether the result was right."""
    (t, top_k, experts, h, f), kind = shape, torch.bfloat16
    est = 4 * t * top_k * h * f / 600e12
    x, weights = torch.randn(t, h, device="cuda", dtype=kind), torch.rand(t, top_k, device="cuda")
    indices = torch.rand(t, experts, device="cuda").topk(top_k).indices.to(torch.int32).contiguous()
    w1 = torch.randn(experts, f, h, device="cuda", dtype=kind).div_(h ** 0.5).transpose(1, 2)
    w2 = torch.randn(experts, h, f, device="cuda", dtype=kind).div_(f ** 0.5).transpose(1, 2)
    out = torch.empty_like(x)
    ends = torch.bincount(indices.flatten(), minlength=experts).cumsum(0).to(torch.int32)
    rows, first, second = (torch.randn(t * top_k, n, device="cuda", dtype=kind) for n in (h, f, h))
    variants = {"pknumba": [lambda: moe_layer(world, x, indices, weights, w1, w2, out=out)],
                "parts": [lambda: (grouped_gemm(world, rows, w1, ends, out=first), grouped_gemm(world, first, w2, ends, out=second))],
                "torch": [lambda: torch_layer(x, indices, weights, w1, w2)]}
    variants["pknumba"][0]()
    expected = torch_layer(x, indices, weights, w1, w2).float()
    error = ((out.float() - expected).norm() / expected.norm()).item()
    if not error < 1e-2:                                                # both round twice on the way
        print(f"WRONG layer {shape}: relative error {error:.2e}", flush=True)
        return False
    times, how = protocol.interleaved(variants, max(est, 1e-3), rounds=args.rounds)
    for baseline, said in (("parts", "its two grouped_gemm alone"), ("torch", "torch: sort, gather, _grouped_mm, silu, _grouped_mm, sum")):
        protocol.write(args.out, "moe_layer", shape, "bfloat16", times["pknumba"], said, times[baseline], error, how=how,
                       tflops=round(4 * t * top_k * h * f / protocol.summary(times["pknumba"])[0] * 1e-6, 1),
                       **protocol.energy(args, variants, est, "pknumba", baseline))
    return True


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "moe.jsonl")
    p.add_argument("--layouts", nargs="+", default=["nt", "nn"], choices=["nt", "nn"])
    p.add_argument("--config", default="", help="fields of GroupedGemmConfig, key=value,key=value; chosen by shape without")
    args = p.parse_args()
    torch.manual_seed(0)
    world, budget, right = World.local(1, executor="gpu"), protocol.Budget(args.budget), True
    for shape in SHAPES:
        for spread in SPREADS:
            for layout in args.layouts:
                name = f"{'x'.join(map(str, shape))}-{spread}-{layout}"
                if args.only in name and not budget.spent(name):
                    right &= case(world, shape, spread, layout, args)
                    torch.cuda.empty_cache()
    for shape in LAYERS:
        name = f"layer-{'x'.join(map(str, shape))}"
        if args.only in name and not budget.spent(name):
            right &= layer(world, shape, args)
            torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
