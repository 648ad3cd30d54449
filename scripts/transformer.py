"""One block of a transformer, tensor-, sequence- and expert-parallel over the ranks of a world, reads the licence of Python.

Every rank holds its share of the tokens (bytes), of the heads and of the experts. ``all_gather_gemm`` gathers the normed tokens while they
are multiplied by a rank's part of the projections; ``attention`` works on its heads; ``gemm_reduce_scatter`` brings the sum over heads
back to the tokens' ranks; ``moe_layer`` sends each token to two experts and brings their weighted sum back. Checked against a forward
pass in float64 NumPy on one process. Exit status 1 when they differ by more than rounding may.

    mpirun -n 4 python scripts/transformer.py            # ranks as MPI processes
    python scripts/transformer.py --world 4              # ranks in this process
"""

import argparse
import builtins
import importlib.util
import sys
import time

import ml_dtypes
import numpy as np
from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world, to_numpy

from pknumba import all_gather_gemm, attention, gemm_reduce_scatter, moe_layer

STARTED = time.perf_counter()
BFLOAT16 = ml_dtypes.bfloat16
#: Width of a head, heads, width of a token, experts, width of an expert, experts of each token.
HEAD, HEADS, EXPERTS, HIDDEN, TOP = 64, 8, 8, 256, 2
WIDTH = HEAD * HEADS
#: Largest relative error (norms): eight results in a row are rounded to bfloat16, by at most 2^-8 each and 2^-9.5 in the mean.
LIMIT = 8 * 2.0 ** -9


def say(text):
    """Print on one rank only, at once."""
    if FIRST:
        print(text, flush=True)


def text(tokens):
    """So many bytes of what Python ships: its licence, or where that is missing, a chapter of its help."""
    builtins.license._Printer__setup()
    found = "\n".join(builtins.license._Printer__lines).encode()
    if len(found) < tokens:
        from pydoc_data.topics import topics
        found = "\n".join(topics.values()).encode()
    return np.frombuffer(found[:tokens], np.uint8)


def weights(seed=0):
    """{name: array} in bfloat16, the same wherever it is called."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (rng.standard_normal(shape) / shape[-2] ** 0.5).astype(BFLOAT16)
    return {"bytes": (rng.standard_normal((256, WIDTH))).astype(BFLOAT16), "qkv": draw(3, WIDTH, WIDTH), "out": draw(WIDTH, WIDTH),
            "router": draw(WIDTH, EXPERTS), "up": draw(EXPERTS, WIDTH, HIDDEN), "down": draw(EXPERTS, HIDDEN, WIDTH)}


def on_device(world, x):
    """x where the world works: as a torch tensor on a GPU, if torch is there (it knows bfloat16 and can be reshaped)."""
    torch = sys.modules.get("torch")
    if world.executor != "gpu" or torch is None:
        return world.asarray(x)
    bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16 if x.dtype == BFLOAT16 else x.dtype)).to(f"cuda:{world.device}")
    return bits.view(torch.bfloat16) if x.dtype == BFLOAT16 else bits


def on_host(x):
    """An array in bfloat16 from any device, in float32."""
    if type(x).__module__ == "torch":
        x = x.contiguous().view(sys.modules["torch"].int16).cpu().numpy().view(BFLOAT16)
    return to_numpy(x).astype(np.float32)


def normed(x):
    """x over the root of the mean square of its row."""
    return x / np.sqrt(np.mean(x * x, 1, keepdims=True) + 1e-6)


def routed(logits):
    """(indices (tokens, TOP), weights of the same shape): the best experts, and the softmax of their logits."""
    indices = np.argsort(-logits, 1, kind="stable")[:, :TOP]
    chosen = np.exp(np.take_along_axis(logits, indices, 1))
    return indices, chosen / chosen.sum(1, keepdims=True)


def block(world, tokens):
    """This rank's rows of the block's result, and the experts that they chose."""
    w, rank, size, heads = weights(), world.rank, world.size, HEADS // world.size
    mine = slice(rank * heads * HEAD, (rank + 1) * heads * HEAD)
    x = np.array_split(w["bytes"][tokens], size)[rank].astype(np.float32)        # the residual stays in float32

    given = on_device(world, normed(x).astype(BFLOAT16))
    qkv = all_gather_gemm(world, given, on_device(world, np.concatenate([part[:, mine] for part in w["qkv"]], 1)), rows=len(tokens))
    q, k, v = (qkv.reshape(1, len(tokens), 3, heads, HEAD)[:, :, i].swapaxes(1, 2) for i in range(3))
    o, _ = attention(world, q, k, v, causal=True)
    o = o.swapaxes(1, 2).reshape(len(tokens), heads * HEAD)
    x = x + on_host(gemm_reduce_scatter(world, o, on_device(world, w["out"][mine])))

    h = normed(x).astype(BFLOAT16)
    indices, share = routed(h.astype(np.float32) @ w["router"].astype(np.float32))
    table, share, up, down = (on_device(world, x) for x in (indices.astype(np.int32), share.astype(np.float32),
                                                            *(np.array_split(w[name], size)[rank] for name in ("up", "down"))))
    moved = moe_layer(world, on_device(world, h), table, share, up, down, tokens=-(-len(tokens) // size), experts=EXPERTS)
    return x + on_host(moved), indices


def single(tokens, indices):
    """The same block in float64 NumPy on one process, each token with the experts that it chose there: (result, how much worse than the
    best expert the worst chosen one may be seen from here, in logits)."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    x = w["bytes"][tokens]
    q, k, v = ((normed(x) @ part).reshape(-1, HEADS, HEAD).transpose(1, 0, 2) for part in w["qkv"])
    scores = q @ k.transpose(0, 2, 1) / HEAD ** 0.5
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    share = np.exp(scores - scores.max(2, keepdims=True))
    o = (share / share.sum(2, keepdims=True)) @ v
    x = x + o.transpose(1, 0, 2).reshape(len(tokens), WIDTH) @ w["out"]

    h = normed(x)
    logits = h @ w["router"]
    chosen = np.exp(np.take_along_axis(logits, indices, 1))
    chosen /= chosen.sum(1, keepdims=True)
    moved = np.zeros_like(x)
    for e in range(EXPERTS):
        hidden = h @ w["up"][e]
        moved += (chosen * (indices == e)).sum(1)[:, None] * ((hidden / (1 + np.exp(-hidden))) @ w["down"][e])
    doubt = np.sort(logits, 1)[:, -TOP] - np.take_along_axis(logits, indices, 1).min(1)
    return x + moved, doubt.max()


def judge(world, results, tokens, seconds):
    """Print the result and say whether it is right."""
    found, indices = (np.concatenate(parts) for parts in zip(*results))
    expected, doubt = single(tokens, indices)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    worst = np.max(np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1))
    passed = bool(error <= LIMIT and worst <= 4 * LIMIT and doubt <= 0.05 and np.isfinite(found).all())
    counts = np.bincount(indices.ravel(), minlength=EXPERTS)
    say(f"{len(tokens)} bytes, {bytes(tokens[:40])!r}...\ntokens of each expert: {', '.join(map(str, counts))}\n"
        f"relative error against float64 {error:.1e}, of the worst token {worst:.1e}; at most {LIMIT:.1e} and {4 * LIMIT:.1e} are right\n"
        f"executor {world.executor}, {world.size} ranks, {seconds:.2f} s, in all {time.perf_counter() - STARTED:.1f} s\n"
        f"{'PASS' if passed else 'FAIL'}")
    return passed


def read(world, tokens):
    """One rank's part: (results of all ranks, seconds)."""
    start = time.perf_counter()
    mine = block(world, tokens)
    world.synchronize()
    return world.allgather(mine), time.perf_counter() - start


def main():
    """Read, judge. Returns the exit status."""
    p = Parser(prog="transformer.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--world", type=at_least(1), help=f"ranks in this process, without mpirun (4); a divisor of {HEADS}")
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    p.add_argument("--tokens", type=at_least(1), default=250, help="bytes to read")
    args = p.parse_args()
    if args.executor != "interpreter":
        importlib.util.find_spec("torch") and importlib.import_module("torch")     # before the world: its streams are then torch's
    size = args.world or LAUNCHED or 4
    if HEADS % size:
        p.error(f"{size} ranks for {HEADS} heads: the ranks share the heads equally")
    world, tokens = open_world(size, args.executor), text(args.tokens)
    with world:
        results, seconds = on_every_rank(world, read, tokens)[0]
    return 0 if judge(world, results, tokens, seconds) else 1


if __name__ == "__main__":
    sys.exit(guarded("transformer.py", main))
