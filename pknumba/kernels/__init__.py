"""Operators: one file, one kernel class, one public function each."""

from .gemm import Gemm, gemm
from .gemm_all_reduce import GemmAllReduce, gemm_all_reduce

__all__ = ["Gemm", "gemm", "GemmAllReduce", "gemm_all_reduce"]
