"""pknumba.attention against cuDNN (torch's scaled_dot_product_attention), interleaved in one run; one JSON line per case. Torch's
FlashAttention-2 runs along where heads are not grouped.

    python benchmarks/attention.py                                every case, in the order of the list below
    python benchmarks/attention.py --only 8192x128-causal         cases whose name (bfloat16-4x16x16x8192x128-causal) contains that
    python benchmarks/attention.py --configs consumers=2,kv=128 consumers=3,kv=64       several configurations in the same run
"""

import os
import sys
from functools import partial
from multiprocessing import Pool

import protocol
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pknumba import Attention, World, attention
from pknumba.config import attention_config
from pknumba.errors import PknumbaError
from pknumba.templates.call import compiled

#: (batch, query heads, heads of K and V, queries and keys, width): those of the issue, then others.
SHAPES = [(4, 16, 16, 8192, 128), (16, 16, 16, 1536, 128), (4, 32, 8, 4096, 128), (4, 16, 16, 8192, 64), (2, 16, 16, 8192, 256)]
#: Largest relative error of O, and largest error of the log-sum-exp, that pass.
LIMITS, LSE_LIMIT = {"bfloat16": 5e-3, "float16": 1e-3}, 1e-4


def configs_of(texts, width):
    """AttentionConfigs from "consumers=2,kv=128" each; the chosen one without any."""
    found = {}
    for text in texts or [""]:
        pairs = dict(pair.split("=") for pair in text.split(",") if pair)
        changes = {k: v == "True" if v in ("True", "False") else int(v) for k, v in pairs.items()}
        found[text or "chosen"] = attention_config(width).replace(**changes)
    return found


def build(config):
    """Compile a configuration to the cache on disk; whoever asks again is told why it cannot be."""
    try:
        compiled(Attention, config)
    except PknumbaError as problem:
        print(f"{config}: {problem}"[:300], flush=True)
        return False
    return True


def build_all(cases, texts):
    """Compile everything at once on all cores, before CUDA is initialised. Returns the configurations that compile."""
    jobs = list(dict.fromkeys(config.replace(dtype=dtype, causal=causal) for dtype, shape, causal, _ in cases
                              for config in configs_of(texts, shape[-1]).values()))
    with Pool(min(len(jobs), os.cpu_count()) or 1) as pool:
        return {job for job, right in zip(jobs, pool.map(build, jobs, 1)) if right}


def errors(o, lse, q, k, v, causal):
    """(relative error of O, largest of lse) over the first and the last head, against float32."""
    worst, worst_lse = 0.0, 0.0
    for b, h in ((0, 0), (q.shape[0] - 1, q.shape[1] - 1)):
        p = h * k.shape[1] // q.shape[1]
        s = q[b, h].float() @ k[b, p].float().T * q.shape[3] ** -0.5
        if causal:
            s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
        want = torch.softmax(s, -1) @ v[b, p].float()
        worst = max(worst, ((o[b, h].float() - want).norm() / want.norm()).item())
        worst_lse = max(worst_lse, (lse[b, h] - torch.logsumexp(s, -1)).abs().max().item())
    return worst, worst_lse


def case(world, shape, dtype, causal, built, args):
    """Check and time one case; writes a line for each configuration. Returns whether the results were right."""
    (b, h, p, s, d), kind, right = shape, getattr(torch, dtype), True
    flops = 4 * b * h * s * s * d // (2 if causal else 1)
    est = flops / 600e12
    sets = []
    for _ in range(protocol.rotation(2 * b * s * d * (2 * h + 2 * p), est)):
        q, k, v = (torch.randn(b, n, s, d, device="cuda", dtype=kind) for n in (h, p, p))
        sets.append((q, k, v, torch.empty_like(q), torch.empty(b, h, s, device="cuda")))

    def by(backend, q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=h != p)
    others = {"cudnn": SDPBackend.CUDNN_ATTENTION, **({"flash2": SDPBackend.FLASH_ATTENTION} if h == p else {})}
    variants, found = {name: [partial(by, backend, *x[:3]) for x in sets] for name, backend in others.items()}, {}
    for name, config in configs_of(args.configs, d).items():
        if config.replace(dtype=dtype, causal=causal) not in built:
            continue
        for q, k, v, o, lse in sets:
            o.fill_(float("nan"))
            attention(world, q, k, v, causal=causal, out=o, lse=lse, config=config)
        world.synchronize()
        error, lse_error = errors(o, lse, q, k, v, causal)
        if not (error < LIMITS[dtype] and lse_error < LSE_LIMIT):
            print(f"WRONG {name} {dtype} {shape} causal={causal}: relative error {error:.2e}, lse {lse_error:.2e}", flush=True)
            right = False
            continue
        found[name] = error, config
        variants[name] = [lambda x=x, c=config: attention(world, *x[:3], causal=causal, out=x[3], lse=x[4], config=c) for x in sets]
    times, how = protocol.interleaved(variants, est, rounds=args.rounds)
    rate = {name: round(flops / protocol.summary(taken)[0] * 1e-6, 1) for name, taken in times.items()}
    for name, (error, config) in found.items():
        protocol.write(args.out, "attention", shape, dtype, times[name], "cuDNN (torch scaled_dot_product_attention)", times["cudnn"],
                       error, config=vars(config), chosen="by width" if name == "chosen" else "by flag", how=how, sets=len(sets),
                       layout="causal" if causal else "full", tflops=rate[name], baseline_tflops=rate["cudnn"],
                       flash2_tflops=rate.get("flash2"), **protocol.energy(args, variants, est, name, "cudnn"))
    return right


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "attention.jsonl")
    p.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    p.add_argument("--configs", nargs="+", default=[], help="fields of AttentionConfig, key=value,key=value; chosen by width without")
    args = p.parse_args()
    cases = [(dtype, shape, causal, f"{dtype}-{'x'.join(map(str, shape))}-{'causal' if causal else 'full'}")
             for dtype in args.dtypes for shape in SHAPES for causal in (False, True)]
    cases = [c for c in cases if args.only in c[-1]]
    built = build_all(cases, args.configs)
    torch.manual_seed(0)
    world, budget, right = World.local(1, executor="gpu"), protocol.Budget(args.budget), True
    for dtype, shape, causal, name in cases:
        if not budget.spent(name):
            right &= case(world, shape, dtype, causal, built, args)
            torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
