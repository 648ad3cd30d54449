"""Configurations of products of groups of rows, and which is expected to be fastest."""

from dataclasses import dataclass
from typing import ClassVar

from .choosing import _GEMMS, _SM_FLOPS
from .products import GemmConfig
from .rules import insist

#: What may be done to a product before it is rounded.
ACTIVATIONS = ("none", "relu", "silu", "gelu")


@dataclass(frozen=True)
class GroupedGemmConfig(GemmConfig):
    """How a product of groups of rows is cut up: as a GEMM, each block by itself."""

    clusters: ClassVar[tuple] = (1,)
    #: Whether consumers may take tiles in turns.
    turns: ClassVar[bool] = True


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
    base = base or GroupedGemmConfig()
    fields = min((found for found in _GEMMS if base.turns or not found[0].get("ping_pong")), key=lambda found: time(*found))[0]
    return base.replace(**fields)


@dataclass(frozen=True)
class ExpertConfig(GroupedGemmConfig):
    """A product of experts' rows on one rank.

    Attributes:
        activation: "none", "relu", "silu" or "gelu" of the product, before it is rounded.
    """

    activation: str = "none"

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (self.activation in ACTIVATIONS, f"activation = {self.activation!r}. It must be one of {', '.join(ACTIVATIONS)}.")])


@dataclass(frozen=True)
class MoeConfig(ExpertConfig):
    """A product of experts' rows that come from all ranks, or go back to them.

    Attributes:
        comm_sms: SMs whose warps carry rows; the others compute. piece_m: rows that a warp fetches before it tells. A world of one rank has
            no use for either.
    """

    comm_sms: int = 16
    piece_m: int = 4

    runtime: ClassVar[tuple] = ("comm_sms",)
    turns: ClassVar[bool] = False           # helpers that wait and tell need the registers that turns would

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (not self.ping_pong, "ping_pong with communicators. Their helpers leave too few registers. Use consumers that share a tile."),
            (self.comm_sms >= 1, f"comm_sms = {self.comm_sms}. At least one SM must carry rows."),
            (self.piece_m >= 1 and self.tile_m % max(self.piece_m, 1) == 0, f"piece_m = {self.piece_m} of tile_m = {self.tile_m}. Pieces "
             "are equal. Use a divisor.")])


#: Bytes per second that an SM's warps carry within a device (measured on an H200: a layer 4096 x 2 of 8, 4096 x 14336, fed by one), and
#: between devices (an estimate, not measured).
_CARRIES, _SENDS = 2e10, 1.5e10


def best_experts(rows, groups, n, k, num_sms, base=None, world=1, returns=False):
    """As ``best_groups``, with so many SMs set aside that carrying takes four fifths of the time of the product; a fifth of all at most.

    Args:
        world: ranks. returns: whether results are carried to other ranks (their own rank's stay); else inputs from all.
    """
    base = base or MoeConfig()
    reuse, share = (k, (world - 1) / world) if returns else (n, 1)          # how often each carried element is multiplied
    rate = _CARRIES if world == 1 else _SENDS
    comm = max(1, min(round(share * 0.9 * _SM_FLOPS * num_sms / (0.8 * rate * reuse)), num_sms // 5))
    return best_groups(rows, groups, n, k, max(1, num_sms - comm), base.replace(comm_sms=comm))
