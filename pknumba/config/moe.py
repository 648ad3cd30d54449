"""Configurations of products of groups of rows, and which is expected to be fastest."""

from dataclasses import dataclass
from typing import ClassVar

from .choosing import _GEMMS, _SM_FLOPS
from .products import GemmConfig


@dataclass(frozen=True)
class GroupedGemmConfig(GemmConfig):
    """How a product of groups of rows is cut up: as a GEMM, each block by itself."""

    clusters: ClassVar[tuple] = (1,)


def best_groups(rows, groups, n, k, num_sms, base=None):
    """The configuration expected to be fastest for ``groups`` groups of about ``rows / groups`` rows each: the host knows no more.

    As ``best``: waves of tiles over the SMs. Of a group's last tile only the consumers that have rows multiply, but all of B is loaded.

    Args:
        num_sms: SMs that a rank may use. base: a configuration whose other fields are kept.
    """
    mean = max(1, -(-rows // max(groups, 1)))
    filled = max(1, min(rows, groups))

    def time(fields, rate):
        tile_m, parts = fields["tile_m"], 1 if fields.get("ping_pong") else fields.get("consumers", 2)
        part_m = tile_m // parts
        tiles, used = -(-mean // tile_m), -(-mean // part_m) * part_m
        share = (1 + used / (tiles * tile_m)) / 2               # a tile with half its rows takes three quarters of the time
        waves = -(-filled * tiles * -(-n // fields["tile_n"]) // num_sms)
        depth = k + (128 if fields.get("ping_pong") else 320)
        return waves * share * 2 * tile_m * fields["tile_n"] * depth / (rate * _SM_FLOPS)
    fields = min(_GEMMS, key=lambda found: time(*found))[0]
    return (base or GroupedGemmConfig()).replace(**fields)
