"""Operators: one file, one kernel class, one public function each."""

from .all_reduce import AllReduce, all_reduce
from .gemm import Gemm, gemm
from .gemm_all_reduce import GemmAllReduce, gemm_all_reduce
from .gemm_reduce_scatter import GemmReduceScatter, gemm_reduce_scatter

__all__ = ["AllReduce", "all_reduce", "Gemm", "gemm", "GemmAllReduce", "gemm_all_reduce", "GemmReduceScatter", "gemm_reduce_scatter"]
