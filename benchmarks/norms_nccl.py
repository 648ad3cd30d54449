"""all_reduce_rmsnorm against NCCL's all-reduce and torch's addition and norm, as they are and compiled; one GPU for each rank.

    mpirun -n 2 python benchmarks/norms_nccl.py

All replay a CUDA graph of calls in a row. Results are checked against float64 first. Rows are what layers of a model hand to each
other, and lie in the L2 cache for all alike.
"""

import sys
from functools import lru_cache, partial

import protocol
import torch
import torch.distributed as dist
from ranks import beside_nccl, guarded
from rivals import Ours, compare, compiled, room

from pknumba import all_reduce_rmsnorm

#: (rows, width).
SHAPES = [(1, 8192), (8, 8192), (64, 8192), (512, 8192), (4096, 8192)]
EPS = 1e-6
#: Largest relative error: ours rounds h and its norm, rivals the sum of ranks too, of more than two ranks several times.
LIMIT = 6e-3


def finish(total, residual, weight):
    """The norm of total + residual, which is left in total."""
    h = total.add_(residual)
    return torch.nn.functional.rms_norm(h, h.shape[-1:], weight, EPS)


@lru_cache
def compiled_finish():
    """(``finish`` as torch compiles it, how). Raises where it does not: that rival runs already."""
    made, how = compiled(finish, *(torch.randn(*shape, device="cuda").bfloat16() for shape in ((16, 8192), (16, 8192), (8192,))))
    if made is finish:
        raise RuntimeError(how)
    return made, how


class Apart:
    """All-reduce, addition, norm. NCCL works in place: values grow past what is checked, and time does not depend on them."""

    def __init__(self, x, residual, weight, finishing):
        self.total, self.residual, self.weight, (self.finish, self.how) = x.clone(), residual, weight, finishing

    def __call__(self):
        dist.all_reduce(self.total)
        self.out = self.finish(self.total, self.residual, self.weight)


def against_nccl(x, residual, weight):
    """{name: make} of both rivals."""
    return {"NCCL all-reduce, add, torch rms_norm": lambda: Apart(x, residual, weight, (finish, None)),
            "NCCL all-reduce, add and rms_norm compiled by torch": lambda: Apart(x, residual, weight, compiled_finish())}


def case(world, shape, args, others=against_nccl):
    """Check and time one shape against ``others(x, residual, weight)``. Returns whether ours was right on every rank."""
    own, same = (torch.Generator("cuda").manual_seed(seed) for seed in (1 + world.rank, 0))
    x = torch.randn(*shape, device="cuda", generator=own).bfloat16()
    residual, weight = (torch.randn(*size, device="cuda", generator=same).bfloat16() for size in (shape, shape[1:]))
    out, kept = torch.empty_like(x), torch.empty_like(x)
    total = x.double()
    dist.all_reduce(total)
    total += residual.double()
    truth = total * torch.rsqrt((total * total).mean(-1, keepdim=True) + EPS) * weight.double()
    with room(world) as part:
        ours = Ours(partial(all_reduce_rmsnorm, part, x, residual, weight, eps=EPS, out=out, residual_out=kept), out)
        return compare(part, args, "all_reduce_rmsnorm", shape, ours, others(x, residual, weight), seconds=0.5, graphs=True, limit=LIMIT,
                       error=lambda y: ((y.double() - truth).norm() / truth.norm()).item())


def cases(world, args, budget, shapes=SHAPES, others=against_nccl):
    """Every shape that the flags name. Returns whether all were right."""
    right = True
    for shape in shapes:
        name = f"all_reduce_rmsnorm {'x'.join(map(str, shape))}"
        if args.only in name:
            right &= guarded(world, name, budget, partial(case, world, shape, args, others))
    return right


def main():
    """Run the shapes that the flags name. Returns the exit status."""
    args = protocol.options(__doc__, "multigpu.jsonl").parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)))


if __name__ == "__main__":
    sys.exit(main())
