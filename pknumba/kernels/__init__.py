"""Operators: one file, one kernel class, one public function each."""

from .gemm import Gemm, gemm
from .gemm_all_reduce import GemmAllReduce, gemm_all_reduce
from .gemm_reduce_scatter import GemmReduceScatter, gemm_reduce_scatter

__all__ = ["Gemm", "gemm", "GemmAllReduce", "gemm_all_reduce", "GemmReduceScatter", "gemm_reduce_scatter"]
