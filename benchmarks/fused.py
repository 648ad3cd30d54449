"""What benchmarks know of each operator that multiplies and communicates: its inputs, its result in float64, its rivals.

One class for each; a new operator adds one to ``FUSED``. A case has A and B of this rank, ``ours(config)`` and ``theirs()`` (cuBLAS, then
NCCL, or the other way round), ``expected`` in float64 and ``found()``.
"""

import protocol
import torch
import torch.distributed as dist

import pknumba
from pknumba import GemmReduceScatterConfig, all_gather_gemm, gemm_all_reduce, gemm_all_to_all, gemm_reduce_scatter
from pknumba.config import best


class Fused:
    """One operator on one shape (m, n, k) of the whole product."""

    name = rival = config = ""
    #: Largest relative error that roundings explain.
    limit = 5.6e-3

    def __init__(self, world, shape):
        self.world, (m, n, k) = world, shape
        source = torch.Generator("cuda").manual_seed(world.rank)
        self.A = torch.randn(self.rows_of_a(m), k, device="cuda", generator=source).bfloat16()
        self.B = (torch.randn(n, k, device="cuda", generator=source) / k**0.5).bfloat16().t()
        self.prepare(m, n)

    def rows_of_a(self, m):
        """Rows of A that this rank has."""
        return m

    def found(self):
        """The result of the last call of ours."""
        return self.out

    def error(self, found):
        """Relative error of a result on this rank."""
        return ((found.double() - self.expected).norm() / self.expected.norm()).item()

    def make_config(self, fields, comm_sms):
        """A configuration with the fields of a GemmConfig and that many communicating SMs; None: none, all communicate beside computing."""
        more = {"intra_sm": True} if comm_sms is None else {"comm_sms": comm_sms}
        return getattr(pknumba, self.config)(**{**fields, **more}).fitted()

    def flops(self, shape):
        """Operations of one rank."""
        m, n, k = shape
        return 2 * m * n * k

    def close(self):
        """Give symmetric memory back."""


class AllReduce(Fused):
    """gemm_all_reduce into a symmetric array."""

    name, rival, config = "gemm_all_reduce", "cublas + NCCL all-reduce", "GemmAllReduceConfig"

    def prepare(self, m, n):
        """Outputs and truth."""
        self.out, self.D = self.world.symmetric((m, n), "bfloat16"), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.expected = self.A.double() @ self.B.double()
        dist.all_reduce(self.expected)

    def ours(self, config=None):
        """Ours."""
        gemm_all_reduce(self.world, self.A, self.B, out=self.out, config=config)

    def theirs(self):
        """Theirs."""
        torch.matmul(self.A, self.B, out=self.D)
        dist.all_reduce(self.D)

    def found(self):
        """The sum."""
        return protocol.as_torch(self.out.local)

    def close(self):
        """The result's memory."""
        self.out.close()


class ReduceScatter(Fused):
    """gemm_reduce_scatter into ordinary memory."""

    name, rival, config = "gemm_reduce_scatter", "cublas + NCCL reduce-scatter", "GemmReduceScatterConfig"

    def prepare(self, m, n):
        """Outputs and truth."""
        share = m // self.world.size
        self.D = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.out, self.theirs_out = (torch.empty(share, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        total = self.A.double() @ self.B.double()
        dist.all_reduce(total)
        self.expected = total[self.world.rank * share:(self.world.rank + 1) * share].clone()

    def ours(self, config=None):
        """Ours."""
        gemm_reduce_scatter(self.world, self.A, self.B, out=self.out, config=config)

    def theirs(self):
        """Theirs."""
        torch.matmul(self.A, self.B, out=self.D)
        dist.reduce_scatter_tensor(self.theirs_out, self.D)


class ReduceScatterAdd(ReduceScatter):
    """The same with sums rounded at each addition: its error is larger, and has another limit."""

    name, limit = "gemm_reduce_scatter (adds)", 1.2e-2

    def make_config(self, fields, comm_sms):
        """With adds, which take SMs of their own."""
        return super().make_config(fields, comm_sms or 8).replace(adds=True)

    def ours(self, config=None):
        """Ours; the chosen configuration is that of a call that may add at the owner."""
        m, n, k = self.world.size * self.out.shape[0], self.B.shape[1], self.A.shape[1]
        super().ours(config or best(m, n, k, self.world.num_sms, GemmReduceScatterConfig(adds=True), self.world.size))


class AllToAll(Fused):
    """gemm_all_to_all of rows, one rank's below the other's, as NCCL's all-to-all puts them."""

    name, rival, config, limit = "gemm_all_to_all", "cublas + NCCL all-to-all", "GemmAllToAllConfig", 3.9e-3

    def prepare(self, m, n):
        """Outputs and truth."""
        self.D, self.theirs_out = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.out, product = self.world.symmetric((m, n), "bfloat16"), self.A.double() @ self.B.double()
        self.expected = torch.empty_like(product)
        dist.all_to_all_single(self.expected, product)

    def make_config(self, fields, comm_sms):
        """No SM only communicates."""
        return pknumba.GemmAllToAllConfig(**fields)

    def ours(self, config=None):
        """Ours."""
        gemm_all_to_all(self.world, self.A, self.B, scatter_axis=0, gather_axis=0, out=self.out, config=config)

    def theirs(self):
        """Theirs."""
        torch.matmul(self.A, self.B, out=self.D)
        dist.all_to_all_single(self.theirs_out, self.D)

    def found(self):
        """The shares of all ranks."""
        return protocol.as_torch(self.out.local)

    def close(self):
        """The result's memory."""
        self.out.close()


class AllGather(Fused):
    """all_gather_gemm: every rank has its rows of A, and its own B."""

    name, rival, config = "all_gather_gemm", "NCCL all-gather + cublas", "AllGatherGemmConfig"

    def rows_of_a(self, m):
        """Its share."""
        return m // self.world.size

    def prepare(self, m, n):
        """Outputs and truth."""
        self.full = torch.empty(m, self.A.shape[1], device="cuda", dtype=torch.bfloat16)
        self.out, self.D = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        dist.all_gather_into_tensor(self.full, self.A)
        self.expected = self.full.double() @ self.B.double()

    def ours(self, config=None):
        """Ours."""
        all_gather_gemm(self.world, self.A, self.B, out=self.out, config=config)

    def theirs(self):
        """Theirs."""
        dist.all_gather_into_tensor(self.full, self.A)
        torch.matmul(self.full, self.B, out=self.D)


FUSED = {case.name: case for case in (AllReduce, ReduceScatter, ReduceScatterAdd, AllGather, AllToAll)}
