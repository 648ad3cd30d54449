"""Frozen configurations, one family of kernels each, with the one ``check()`` that launcher and tuner share."""

from .attention import (AttentionConfig, DecodeAttentionConfig, RingAttentionConfig, UlyssesAttentionConfig, attention_config,
                        decode_config, moving_sms)
from .choosing import _GEMMS, best, hides_adds  # noqa: F401 - tests go through all that ship
from .comm import CommConfig, NormConfig
from .kept import tuned, tuned_state
from .moe import ACTIVATIONS, ExpertConfig, GroupedGemmConfig, MoeConfig, best_experts, best_groups, rival_groups, tile_cost
from .products import GemmConfig
from .spread import AllGatherGemmConfig, GemmAllReduceConfig, GemmAllToAllConfig, GemmReduceScatterConfig

__all__ = ["AttentionConfig", "DecodeAttentionConfig", "RingAttentionConfig", "UlyssesAttentionConfig", "attention_config",
           "decode_config", "GemmConfig", "GemmAllReduceConfig", "GemmReduceScatterConfig", "AllGatherGemmConfig",
           "GroupedGemmConfig", "CommConfig", "NormConfig", "best", "best_groups", "tuned", "tuned_state", "GemmAllToAllConfig",
           "hides_adds"]
__all__ += ["ACTIVATIONS", "ExpertConfig", "MoeConfig", "best_experts", "moving_sms", "rival_groups", "tile_cost"]
