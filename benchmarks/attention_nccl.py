"""Attention over ranks against torch's attention and NCCL; one GPU for each rank.

    mpirun -n 2 python benchmarks/attention_nccl.py

Rivals. Of ring_attention: a ring of K and V by send and receive while the block at hand is attended to, blocks merged by log-sum-exp in
float32 (compiled by torch where that works); and an all-gather of K and V, then attention. Of ulysses_attention: an all-to-all of q, k
and v at once, attention, an all-to-all of the result. Of decode_attention: attention of this rank's keys, an all-gather of results and
log-sum-exps, merged. Attention is cuDNN's, FlashAttention-2 where that fails. All are checked against float64 first.
"""

import sys
from functools import lru_cache, partial

import ahead
import protocol
import torch
import torch.distributed as dist
from ranks import beside_nccl, guarded
from rivals import Ours, compare, compiled, room, worst_of

from pknumba import decode_attention, ring_attention, ring_rows, ulysses_attention
from pknumba.config import attention_config, decode_config
from pknumba.kernels import RingAttention, UlyssesAttention

#: (batch, query heads, heads of K and V, rows of the whole sequence, width): usual ones, a sweep of lengths, those of the paper.
USUAL = [(1, 16, 16, 8192, 128), (1, 32, 8, 16384, 128), (1, 16, 16, 32768, 128)]
LONG = [(1, 16, 16, 131072, 128)]
PAPER = {"ring_attention": [(16, 16, 16, 12288, 128), (16, 16, 16, 24576, 128), (16, 16, 16, 49152, 128)],
         "ulysses_attention": [(16, 128, 128, 12288, 128)]}
DECODE = [(8, 16, 16, 8192, 128), (8, 32, 8, 32768, 128), (64, 32, 8, 8192, 128)]
#: Rows of a head that are checked, and the largest relative error that passes: both sides round once or twice.
ROWS, LIMIT = 256, 6e-3
#: Seconds of a call under which rivals, of many launches each, would be timed at the speed of the host: they are replayed from graphs.
SHORT = 1e-3


def cudnn(q, k, v, causal=False, sums=True):
    """(O, log-sum-exp (batch, heads, rows, 1))."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, sums, 0.0, causal, False)[:2]


def flash(q, k, v, causal=False, sums=True):
    """The same by FlashAttention-2."""
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)[:2]
    return o, lse.unsqueeze(-1)


ATTENTION = {"cuDNN": cudnn, "FlashAttention-2": flash}
_usable = {}


def usable(world, *sizes):
    """Name of the attention that works for such heads, heads of K and V and width; collective the first time."""
    if sizes not in _usable:
        _usable[sizes] = first_usable(world, *sizes)
    return _usable[sizes]


def first_usable(world, heads, pairs, width):
    """The first of ATTENTION that is right with keys in both layouts, and whose log-sum-exp is one."""
    q, k, v = (torch.randn(1, n, 256, width, device="cuda").bfloat16() for n in (heads, pairs, pairs))
    full = [x.repeat_interleave(heads // pairs, 1).float() for x in (k, v)]
    scores = q.float() @ full[0].mT * width ** -0.5
    wanted = torch.softmax(scores, -1) @ full[1], scores.logsumexp(-1, keepdim=True)
    for name, attention in ATTENTION.items():
        try:
            found = [attention(q, *(x.transpose(1, 2).contiguous().transpose(1, 2) if apart else x for x in (k, v))) for apart in (0, 1)]
            wrong = max(((x.float() - y).norm() / y.norm()).item() for pair in found for x, y in zip(pair, wanted))
        except Exception as problem:
            wrong = float("inf")
            print(f"{name} attention of {heads} and {pairs} heads: {type(problem).__name__}: {problem}"[:300], flush=True)
        if worst_of(world, wrong) < 1e-2:
            return name
    raise RuntimeError(f"no attention of torch's works for {heads} and {pairs} heads")


def merge(out, lse, block, sums):
    """Into (out, lse), (heads, rows, width) and (heads, rows, 1), those of further keys; in float32."""
    share, old = torch.sigmoid(sums - lse), out.float()
    out.copy_(old + share * (block.float() - old))
    lse.copy_(lse - torch.nn.functional.logsigmoid(lse - sums))


def combine(parts):
    """(ranks, ..., width + 1) of results and their log-sum-exp -> the result, bfloat16."""
    weights = torch.softmax(parts[..., -1:], 0)
    return (weights * parts[..., :-1]).sum(0).bfloat16()


class Ring:
    """The usual ring: K and V go round while they are attended to."""

    def __init__(self, world, q, k, v, causal, attention, merging):
        self.world, self.q, self.causal, self.attention, (self.merge, self.how) = world, q, causal, attention, merging
        self.kv = torch.stack([k, v])
        self.rooms = [torch.empty_like(self.kv) for _ in range(min(2, world.size - 1))]

    def __call__(self):
        n, rank, held, half = self.world.size, self.world.rank, self.kv, self.q.shape[2] // 2
        for step in range(n):
            source, into, coming = (rank - step) % n, self.rooms[step % 2] if step + 1 < n else None, ()
            if into is not None:
                moves = (dist.isend, held, (rank + 1) % n), (dist.irecv, into, (rank - 1) % n)
                coming = dist.batch_isend_irecv([dist.P2POp(*move) for move in moves])
            (k, v), ahead = held, self.causal and step and source > rank
            if self.causal and step and source < rank:                  # of pieces r and 2 n - 1 - r the second lies behind all queries
                k, v = k[:, :, :half], v[:, :, :half]
            block, sums = self.attention(self.q[:, :, half:] if ahead else self.q, k, v, self.causal and not step)
            if not step:                                                # flattening below must copy nothing; the last merging rounds
                out, lse = block.contiguous() if n < 3 else block.float().contiguous(), sums.contiguous()
            else:
                late = slice(half if ahead else 0, None)
                self.merge(*(x.flatten(0, 1) for x in (out[:, :, late], lse[:, :, late], block, sums)))
            for request in coming:
                request.wait()
            held = into
        self.out = out.to(self.q.dtype)


class Gathered:
    """All of K and V on every rank, then attention; rows of K and V come first in memory, so that gathered ones need no copy."""

    def __init__(self, world, q, k, v, attention):
        self.q, self.attention = q, attention
        self.mine = [x.permute(2, 0, 1, 3).contiguous() for x in (k, v)]
        self.whole = [x.new_empty(world.size * x.shape[0], *x.shape[1:]) for x in self.mine]

    def __call__(self):
        for mine, whole in zip(self.mine, self.whole):
            dist.all_gather_into_tensor(whole, mine)
        self.out = self.attention(self.q, *(x.permute(1, 2, 0, 3) for x in self.whole), sums=False)[0]


class Exchanged:
    """Heads for rows and back; arrays are (rows, batch, heads, width), so that only what is sent, and the result, is rearranged."""

    def __init__(self, world, q, k, v, causal, attention):
        self.n, self.causal, self.attention = world.size, causal, attention
        self.mine = [x.permute(2, 0, 1, 3).contiguous() for x in (q, k, v)]
        self.heads = [x.shape[2] // self.n for x in self.mine]
        s, b, _, d = self.mine[0].shape
        self.sent, self.came = (q.new_empty(self.n, s, b, sum(self.heads), d) for _ in range(2))
        self.home = q.new_empty(self.n, s, b, self.heads[0], d)

    def __call__(self):
        for x, part in zip(self.mine, self.sent.split(self.heads, 3)):
            part.copy_(x.unflatten(2, (self.n, -1)).permute(2, 0, 1, 3, 4))
        dist.all_to_all_single(self.came, self.sent)
        q, k, v = (x.permute(1, 2, 0, 3) for x in self.came.flatten(0, 1).split(self.heads, 2))
        o = self.attention(q, k, v, self.causal, sums=False)[0].permute(2, 0, 1, 3).contiguous()
        dist.all_to_all_single(self.home, o.unflatten(0, (self.n, -1)))
        self.rows = self.home.permute(1, 2, 0, 3, 4).flatten(2, 3)      # (rows, batch, heads, width)

    @property
    def out(self):
        """In the order of ours."""
        return self.rows.permute(1, 2, 0, 3)


class Parts:
    """Every rank attends to its keys; results and log-sum-exps are gathered and merged."""

    def __init__(self, world, q, k, v, attention, combining):
        self.q, self.k, self.v, self.attention, (self.combine, self.how) = q.unsqueeze(2), k, v, attention, combining
        self.whole = torch.empty(world.size, *q.shape[:2], 1, q.shape[2] + 1, device=q.device)

    def __call__(self):
        o, lse = self.attention(self.q, self.k, self.v)
        dist.all_gather_into_tensor(self.whole.flatten(0, 1), torch.cat([o.float(), lse], -1))
        self.out = self.combine(self.whole).squeeze(2)


def share(world, shape):
    """q, k, v of this rank's rows, which differ from rank to rank."""
    b, h, p, s, d = shape
    source = torch.Generator("cuda").manual_seed(1 + world.rank)
    return [torch.randn(b, n, s // world.size, d, device="cuda", generator=source).bfloat16() for n in (h, p, p)]


def truth(world, q, k, v, mine_of, causal=False):
    """[(batch, head, rows of q, O in float64)] of some rows of the first and the last head; collective."""
    (b, h, rows, d), found = q.shape, []
    places = [torch.from_numpy(mine_of(r)).to(q.device) for r in range(world.size)]
    chosen = torch.linspace(0, rows - 1, min(ROWS, rows), device=q.device).long()
    for i, head in ((0, 0), (b - 1, h - 1)):
        whole = [x.new_empty(sum(map(len, places)), d) for x in (k, v)]
        for x, y in zip((k, v), whole):
            parts = torch.empty_like(y)
            dist.all_gather_into_tensor(parts, x[i, head * k.shape[1] // h].contiguous())
            y[torch.cat(places)] = parts
        scores = q[i, head, chosen].double() @ whole[0].double().T * d ** -0.5
        if causal:
            scores.masked_fill_(torch.arange(scores.shape[1], device=q.device) > places[world.rank][chosen, None], float("-inf"))
        found.append((i, head, chosen, torch.softmax(scores, -1) @ whole[1].double()))
    return found


def error(known, o):
    """The largest relative error of those rows."""
    return max(((o[i, head, rows].double() - want).norm() / want.norm()).item() for i, head, rows, want in known)


def spread(world, shape, name, causal):
    """(ours, {name: make}, error) of ring or Ulysses attention."""
    ring, (q, k, v), size = name == "ring_attention", share(world, shape), world.size
    out, lse, backend = torch.empty_like(q), torch.empty(q.shape[:3], device="cuda"), usable(world, *shape[1:3], shape[4])
    attention = ATTENTION[backend]
    if ring:
        ours = partial(ring_attention, world, q, k, v, causal=causal, out=out, lse=lse)
        makes = {f"NCCL ring, {backend}, merging": lambda: Ring(world, q, k, v, causal, attention, merging(merge))}
        if not causal:                                                  # ranks have two pieces each otherwise, and two masks
            makes[f"NCCL all-gather, then {backend}"] = lambda: Gathered(world, q, k, v, attention)
    else:
        ours = partial(ulysses_attention, world, q, k, v, causal=causal, out=out)
        makes = {f"NCCL all-to-all, {backend}, all-to-all": lambda: Exchanged(world, q, k, v, causal, attention)}
    known = truth(world, q, k, v, lambda r: ring_rows(shape[3], size, r, ring and causal), causal)
    return Ours(ours, out), makes, partial(error, known)


def decode(world, shape, *_):
    """(ours, {name: make}, error): one query for each sequence, the same on all ranks."""
    q, k, v = share(world, shape)
    q, size = q[:, :, 0].contiguous(), world.size
    dist.broadcast(q, 0)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device="cuda")
    known = truth(world, q.unsqueeze(2), k, v, lambda r: ring_rows(shape[3], size, r))
    makes = {f"NCCL all-gather of parts by {name}": lambda attention=attention: Parts(world, q, k, v, attention, merging(combine))
             for name, attention in ATTENTION.items()}
    ours = Ours(partial(decode_attention, world, q, k, v, out=out, lse=lse), out)
    return ours, makes, lambda o: error(known, o.view(*q.shape[:2], 1, -1))


@lru_cache
def merging(function):
    """(``merge`` or ``combine`` as torch compiles it, how)."""
    if function is combine:
        return compiled(combine, torch.randn(3, 4, 5, 1, 65, device="cuda"))
    # The later rows of more, and no two sizes the same: then it is compiled once for all rows and for the later half of them.
    out, block = (torch.randn(6, rows, 64, device="cuda").bfloat16() for rows in (200, 96))
    lse, sums = (torch.randn(6, rows, 1, device="cuda") for rows in (200, 96))
    return compiled(merge, out[:, 104:], lse[:, 104:], block, sums)


def case(world, name, shape, causal, seconds, args, once):
    """Check and time one case, on a world of its own, whose memory is given back. Returns whether ours was right on every rank.

    Args:
        once: seconds that a call takes, about.
    """
    b, h, _, s, d = shape
    short = name == "decode_attention"
    flops = 4 * b * h * (1 if short else s) * s * d / world.size / (1 + causal)
    with room(world) as part:
        ours, makes, wrong = (decode if short else spread)(part, shape, name, causal)
        return compare(part, args, name, shape, ours, makes, seconds=seconds, error=wrong, limit=LIMIT, graphs=once < SHORT, flops=flops,
                       layout="causal" if causal else "full")


def kernels():
    """What is called, as ``ahead`` compiles it: heads of 128."""
    for kernel in (RingAttention, UlyssesAttention):
        cfg = attention_config(128, family=kernel.config).replace(width=128)
        yield from (ahead.job(kernel.__name__, cfg.replace(causal=causal, **({"zigzag": causal} if cfg.spread else {})))
                    for causal in (False, True))
    yield ahead.job("DecodeAttention", decode_config(128).replace(width=128))


def every():
    """(operator, shape, causal, seconds of timing) of every case, the most telling first."""
    layers = ("ring_attention", False), ("ring_attention", True), ("ulysses_attention", False), ("ulysses_attention", True)
    yield from ((name, shape, causal, 1.5) for shape in USUAL for name, causal in layers)
    yield from (("decode_attention", shape, False, 1.0) for shape in DECODE)
    yield from ((name, shapes[0], causal, 3.0) for name, shapes in PAPER.items() for causal in (False, True))
    yield from ((name, shape, causal, 2.0) for shape in LONG for name, causal in layers)
    yield from ((name, shape, False, 3.0) for name, shapes in PAPER.items() for shape in shapes[1:])


def cases(world, args, budget):
    """Every case that the flags name. Returns whether all were right."""
    right = True
    for name, shape, causal, seconds in every():
        label = f"{name}-{'x'.join(map(str, shape))}-{'causal' if causal else 'full'}"
        b, h, _, s, d = shape
        once = 0 if name == "decode_attention" else 4 * b * h * s * s * d / world.size / (1 + causal) / 550e12
        fits = s % (2 * world.size) == 0 and (name != "ulysses_attention" or shape[2] % world.size == 0)
        if args.only in label and fits:
            right &= guarded(world, label, budget, partial(case, world, name, shape, causal, seconds, args, once), need=30 * once)
    return right


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    p.set_defaults(rounds=20)
    args = p.parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)), kernels())


if __name__ == "__main__":
    sys.exit(main())
