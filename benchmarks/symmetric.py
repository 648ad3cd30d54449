"""Products that communicate, and norms after an all-reduce, against torch's symmetric memory; one GPU for each rank.

    mpirun -n 2 python benchmarks/symmetric.py

Rivals: ``torch.ops.symm_mem.fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter``, which copy pieces while others are
multiplied; for gemm_all_reduce cuBLAS and ``symm_mem.two_shot_all_reduce_``, with cuBLAS and NCCL in the same rounds; for
all_reduce_rmsnorm ``symm_mem.one_shot_all_reduce`` and what torch compiles. NVLink multicast stays off: nothing here calls an operation
that uses it, and nothing runs unless torch says that it would not make multicast objects.
"""

import os
import sys
from functools import partial

import against_nccl
import norms_nccl
import protocol
import torch
import torch.distributed as dist
from ranks import beside_nccl

SHAPES = [(8192, 8192, 4096), (4096, 4096, 2048), (2048, 2048, 1024), (16384, 16384, 8192)]


def refuse_multicast():
    """Raise unless torch's symmetric memory leaves multicast alone."""
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory
    if os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") != "1":
        raise RuntimeError("TORCH_SYMM_MEM_DISABLE_MULTICAST is not 1")
    if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, torch.cuda.current_device()):
        raise RuntimeError("torch would use multicast")


class Rival:
    """One operator of torch's on the inputs of ours."""

    def __init__(self, op):
        refuse_multicast()
        import torch.distributed._symmetric_memory as memory
        self.op, self.group, self.ops = op, dist.group.WORLD.group_name, torch.ops.symm_mem
        self.prepare(memory)

    def prepare(self, memory):
        """What is made once."""


class AllGather(Rival):
    """Pieces of A are copied while others are multiplied. The gathered A is asked for where torch would think of multicast otherwise."""

    def __call__(self):
        op = self.op
        _, (self.out,) = self.ops.fused_all_gather_matmul(op.A, [op.B], 0, self.group, return_A=op.full.shape[0] <= 2048)


class ReduceScatter(Rival):
    """Pieces of the product are copied while others are made, and added at the end."""

    def __call__(self):
        self.out = self.ops.fused_matmul_reduce_scatter(self.op.A, self.op.B, "sum", 0, self.group)


class AllReduce(Rival):
    """cuBLAS into symmetric memory, which is then summed in two shots."""

    def prepare(self, memory):
        """Memory that peers see."""
        self.out = memory.empty(*self.op.D.shape, dtype=self.op.D.dtype, device=self.op.D.device)
        memory.rendezvous(self.out, self.group)

    def __call__(self):
        torch.matmul(self.op.A, self.op.B, out=self.out)
        self.ops.two_shot_all_reduce_(self.out, "sum", self.group)


class OneShot:
    """Every rank adds what it reads of the others; addition of the residual and norm are one kernel."""

    def __init__(self, x, residual, weight):
        refuse_multicast()
        import torch.distributed._symmetric_memory as memory
        self.residual, self.weight, self.group = residual, weight, dist.group.WORLD.group_name
        self.finish, self.how = norms_nccl.compiled_finish()
        self.x = memory.empty(*x.shape, dtype=x.dtype, device=x.device)
        memory.rendezvous(self.x, self.group)
        self.x.copy_(x)

    def __call__(self):
        self.out = self.finish(torch.ops.symm_mem.one_shot_all_reduce(self.x, "sum", self.group), self.residual, self.weight)


def norm_rivals(*arrays):
    """{name: make}."""
    return {"torch symm_mem one_shot_all_reduce, add and rms_norm compiled by torch": partial(OneShot, *arrays)}


class Others:
    """What ``against_nccl.case`` asks for further rivals."""

    rivals = {"all_gather_gemm": ("torch symm_mem fused_all_gather_matmul", AllGather),
              "gemm_reduce_scatter": ("torch symm_mem fused_matmul_reduce_scatter", ReduceScatter),
              "gemm_all_reduce": ("torch matmul, symm_mem two_shot_all_reduce_", AllReduce)}
    operators = tuple(rivals)

    def __call__(self, op):
        name, kind = self.rivals[op.name]
        return {name: partial(kind, op)}


def kernels(args):
    """What is called, as ``ahead`` compiles it."""
    return against_nccl.kernels(SHAPES, Others.operators, (), against_nccl.tiles_of(args))


def cases(world, args, budget):
    """Every shape and operator that the flags name, without a sweep of communicating SMs. Returns whether all were right."""
    right = against_nccl.cases(world, args, budget, SHAPES[:3], (), others=Others())
    right &= norms_nccl.cases(world, args, budget, norms_nccl.SHAPES[1:4], norm_rivals)     # one row is compiled apart by torch
    return right & against_nccl.cases(world, args, budget, SHAPES[3:], (), others=Others())


def main():
    """Run the cases that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    against_nccl.flags(p)
    p.set_defaults(rounds=20)
    args = p.parse_args()
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)), kernels(args))


if __name__ == "__main__":
    sys.exit(main())
