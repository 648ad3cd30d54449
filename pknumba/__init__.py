"""pknumba: kernels that overlap tensor-core work with communication between GPUs, written in Python.

The same kernel source runs on GPUs (numba-cuda, inline PTX) and, with no GPU, on an interpreter that finds races and
deadlocks. Importing this loads neither numba nor CUDA nor MPI.
"""

import importlib
import sys

__version__ = "0.1.0"

_HOMES = {
    "World": "runtime", "SymmetricArray": "runtime",
    "gemm": "kernels", "gemm_all_reduce": "kernels", "gemm_reduce_scatter": "kernels",
    "all_gather_gemm": "kernels", "AllGatherGemm": "kernels", "AllGatherGemmConfig": "config",
    "GroupedGemm": "kernels", "grouped_gemm": "kernels", "GroupedGemmConfig": "config",
    "gemm_all_to_all": "kernels", "GemmAllToAll": "kernels", "GemmAllToAllConfig": "config",
    "MoeDispatchGemm": "kernels", "moe_dispatch_gemm": "kernels", "MoeConfig": "config",
    "MoeCombine": "kernels", "moe_combine": "kernels", "moe_layer": "kernels", "MoeLayer": "kernels",
    "Gemm": "kernels", "GemmAllReduce": "kernels", "GemmReduceScatter": "kernels",
    "Attention": "kernels", "attention": "kernels", "AttentionConfig": "config",
    "RingAttention": "kernels", "ring_attention": "kernels", "RingAttentionConfig": "config", "ring_rows": "kernels",
    "DecodeAttention": "kernels", "decode_attention": "kernels", "DecodeAttentionConfig": "config",
    "UlyssesAttention": "kernels", "ulysses_attention": "kernels", "UlyssesAttentionConfig": "config",
    "AllReduce": "kernels", "all_reduce": "kernels",
    "AllReduceRmsNorm": "kernels", "all_reduce_rmsnorm": "kernels", "AllGather": "kernels", "all_gather": "kernels",
    "AllToAll": "kernels", "all_to_all": "kernels", "Broadcast": "kernels", "broadcast": "kernels",
    "Gather": "kernels", "gather": "kernels", "Reduce": "kernels", "reduce": "kernels",
    "ReduceScatter": "kernels", "reduce_scatter": "kernels", "Scatter": "kernels", "scatter": "kernels",
    "SendRecv": "kernels", "send_recv": "kernels",
    "CommConfig": "config", "NormConfig": "config",
    "GemmConfig": "config", "GemmAllReduceConfig": "config", "GemmReduceScatterConfig": "config",
    "check": "checking", "use_bundle": "ahead",
    "errors": "",
}
__all__ = [*_HOMES, "__version__"]
#: What else is found by ``pknumba.`` and the tabulator key; ``from pknumba import *`` leaves it alone.
_MODULES = ("config", "kernels", "lowering", "primitives", "runtime", "teaching", "templates", "tiles", "tuning")


def __getattr__(name):
    home = _HOMES.get(name, "" if name in _MODULES else None)
    if home is None:                            # with its name and the module, Python asks: Did you mean ...?
        raise AttributeError(f"module 'pknumba' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value = importlib.import_module(f".{name}" if not home else f".{home}", __name__)
    value = value if not home else getattr(value, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*__all__, *_MODULES})
