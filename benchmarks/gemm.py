"""pknumba.gemm against cuBLAS (torch.matmul), interleaved in one run; one JSON line per shape and dtype.

    python benchmarks/gemm.py                       every case, in the order of the list below
    python benchmarks/gemm.py --list thirty         thirty shapes, tall, flat, deep and small, and the geometric mean of their ratios
    python benchmarks/gemm.py --only 4096x4096x     cases whose name (bfloat16-4096x4096x4096-nt) contains that
"""

import math
import sys

import protocol
import torch

from pknumba import GemmConfig, World, gemm
from pknumba.config import best, tuned
from pknumba.tuning.shapes import THIRTY

SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (16384, 16384, 2048), (8192, 8192, 1024),
          (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4104)]
#: B as the transpose of a row-major (N, K) array, or row-major itself.
LAYOUTS = ("nt", "nn")


def config_of(text):
    """GemmConfig from "tile_m=128,stages=4"; None from nothing."""
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    changes = {key: int(value) if value.isdigit() else value == "True" if value in ("True", "False") else value for key, value in pairs}
    return GemmConfig().replace(**changes) if changes else None


def case(world, shape, dtype, layout, args):
    """Check and time one case; writes its line. Returns the ratio, or None for a wrong result."""
    (m, n, k), kind = shape, getattr(torch, dtype)
    est = 2 * m * n * k / 600e12 + 2e-6
    sets = []
    for _ in range(protocol.rotation(2 * (m * k + k * n + m * n), est)):
        A = torch.randn(m, k, device="cuda", dtype=kind)
        B = torch.randn(n, k, device="cuda", dtype=kind).t() if layout == "nt" else torch.randn(k, n, device="cuda", dtype=kind)
        sets.append((A, B, torch.full((m, n), float("nan"), device="cuda", dtype=kind), torch.empty(m, n, device="cuda", dtype=kind)))
    known = tuned("gemm", world.card, world.num_sms, 1, shape, dtype, layout == "nt")
    lines = tuple(1 if row % 16 == 0 else 2 for row in (k, k if layout == "nt" else n))     # what the call finds by itself
    config = config_of(args.config) or (GemmConfig(**known) if known else best(m, n, k, world.num_sms, lines=lines))
    for A, B, C, _ in sets:
        gemm(world, A, B, out=C, config=config)
    world.synchronize()
    error = max(protocol.relative_error(C, A, B) for A, B, C, _ in sets)
    limit = 4e-3 if dtype == "bfloat16" else 6e-4                       # half an ulp is 3.9e-3 and 4.9e-4
    if not error < limit:
        print(f"WRONG {dtype} {m}x{n}x{k} {layout}: relative error {error:.2e}, at most {limit:.0e} is right", flush=True)
        return None
    variants = {"pknumba": [lambda A=A, B=B, C=C: gemm(world, A, B, out=C, config=config) for A, B, C, _ in sets],
                "cublas": [lambda A=A, B=B, D=D: torch.matmul(A, B, out=D) for A, B, _, D in sets]}
    times, how = protocol.interleaved(variants, est, rounds=args.rounds)
    flops = 2 * m * n * k
    tflops = {name: round(flops / protocol.summary(t)[0] * 1e-6, 1) for name, t in times.items()}
    protocol.write(args.out, "gemm", shape, dtype, times["pknumba"], "cublas (torch.matmul)", times["cublas"], error, config=vars(config),
                   chosen="by flag" if args.config else "by the tuner" if known else "by shape", layout=layout, how=how, sets=len(sets),
                   tflops=tflops["pknumba"], baseline_tflops=tflops["cublas"],
                   **protocol.energy(args, variants, est, "pknumba", "cublas"))
    return round(protocol.summary(times["cublas"])[0] / protocol.summary(times["pknumba"])[0], 4)


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "gemm.jsonl")
    p.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"])
    p.add_argument("--layouts", nargs="+", default=["nt"], choices=LAYOUTS)
    p.add_argument("--config", default="", help="fields of GemmConfig, key=value,key=value; chosen by shape without")
    p.add_argument("--list", choices=("usual", "thirty"), default="usual", help="which shapes")
    args = p.parse_args()
    torch.manual_seed(0)
    protocol.roofs()
    world, budget, ratios = World.local(1, executor="gpu"), protocol.Budget(args.budget), []
    for dtype in args.dtypes:
        for shape in (THIRTY if args.list == "thirty" else SHAPES):
            for layout in args.layouts:
                name = f"{dtype}-{'x'.join(map(str, shape))}-{layout}"
                if args.only in name and not budget.spent(name):
                    ratios.append(case(world, shape, dtype, layout, args))
                    torch.cuda.empty_cache()
    good = [r for r in ratios if r]
    if len(good) > 1:
        print(f"{len(good)} cases: geometric mean {math.prod(good) ** (1 / len(good)):.3f}, least {min(good):.3f}, "
              f"{sum(r >= 1 for r in good)} at or above 1")
    return 0 if len(good) == len(ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
