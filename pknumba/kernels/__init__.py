"""Operators: one file, one kernel class, one public function each."""

from .all_gather import AllGather, all_gather
from .all_gather_gemm import AllGatherGemm, all_gather_gemm
from .all_reduce import AllReduce, all_reduce
from .all_reduce_rmsnorm import AllReduceRmsNorm, all_reduce_rmsnorm
from .all_to_all import AllToAll, all_to_all
from .attention import Attention, attention
from .broadcast import Broadcast, broadcast
from .decode_attention import DecodeAttention, decode_attention
from .gather import Gather, gather
from .gemm import Gemm, gemm
from .gemm_all_reduce import GemmAllReduce, gemm_all_reduce
from .gemm_all_to_all import GemmAllToAll, gemm_all_to_all
from .gemm_reduce_scatter import GemmReduceScatter, gemm_reduce_scatter
from .grouped_gemm import GroupedGemm, grouped_gemm
from .moe_combine import MoeCombine, moe_combine
from .moe_dispatch_gemm import MoeDispatchGemm, moe_dispatch_gemm
from .moe_layer import MoeLayer, moe_layer
from .reduce import Reduce, reduce
from .reduce_scatter import ReduceScatter, reduce_scatter
from .ring_attention import RingAttention, ring_attention, ring_rows
from .scatter import Scatter, scatter
from .send_recv import SendRecv, send_recv
from .ulysses_attention import UlyssesAttention, ulysses_attention

__all__ = ["AllGather", "all_gather", "AllGatherGemm", "all_gather_gemm", "AllReduce", "all_reduce", "AllReduceRmsNorm",
           "all_reduce_rmsnorm", "AllToAll", "all_to_all", "Attention", "attention", "Broadcast", "broadcast", "DecodeAttention",
           "decode_attention", "Gather", "gather", "Gemm", "gemm", "GemmAllReduce", "gemm_all_reduce", "GemmReduceScatter",
           "gemm_reduce_scatter", "GroupedGemm", "grouped_gemm", "Reduce", "reduce", "ReduceScatter", "reduce_scatter",
           "RingAttention", "ring_attention", "ring_rows", "Scatter", "scatter", "SendRecv", "send_recv", "UlyssesAttention",
           "ulysses_attention", "GemmAllToAll", "gemm_all_to_all"]
__all__ += ["MoeCombine", "moe_combine", "MoeDispatchGemm", "moe_dispatch_gemm", "MoeLayer", "moe_layer"]
