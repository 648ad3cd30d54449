"""Configurations of products of groups of rows, and which is expected to be fastest."""

from dataclasses import dataclass
from typing import ClassVar

from .choosing import _GEMMS, _SM_FLOPS, depth_of
from .products import GemmConfig
from .rules import insist

#: Tiles that have the rows of a group in one, where others of 128 rows would take two and read the group's matrix twice.
_TALL = dict(tile_m=192, tile_n=192, stages=4, c_stages=1, consumers=3, ping_pong=False)
#: What may be done to a product before it is rounded.
ACTIVATIONS = ("none", "relu", "silu", "gelu")


@dataclass(frozen=True)
class GroupedGemmConfig(GemmConfig):
    """How a product of groups of rows is cut up: as a GEMM, each block by itself."""

    clusters: ClassVar[tuple] = (1,)
    #: Whether consumers may take tiles in turns.
    turns: ClassVar[bool] = True

    @property
    def rival_m(self):
        """Rows of a rival's tiles: a constant, since every thread divides by it for every group before it begins."""
        return 128 if self.tile_m == _TALL["tile_m"] else _TALL["tile_m"]

    @property
    def unit_m(self):
        """Rows that a consumer multiplies or leaves out together."""
        return min(self.part_m, 64)


def best_groups(rows, groups, n, k, num_sms, base=None):
    """The configuration expected to be fastest for ``groups`` groups of about ``rows / groups`` rows each: the host knows no more.

    As ``best``: waves of tiles over the SMs. Of a group's last tile only the consumers that have rows multiply, but all of B is loaded.

    Args:
        num_sms: SMs that a rank may use. base: a configuration whose other fields are kept.
    """
    base = base or GroupedGemmConfig()
    return base.replace(**_fastest_groups(rows, groups, n, k, num_sms, base.turns)[1])


def rival_groups(cfg, rows, groups, n, num_sms):
    """A configuration that takes less time than ``cfg`` if groups are uneven in some ways; None where that cannot be: few groups, large
    ones, or less than a wave of tiles."""
    few = -(-rows // cfg.tile_m) * -(-n // cfg.tile_n) <= num_sms
    return None if cfg.tile_m != 128 or groups < 4 or rows > 512 * groups or few else cfg.replace(**_TALL)


def tile_cost(cfg, k):
    """Time of a tile whose depth is k, as an integer to compare with others."""
    return max(1, cfg.tile_m * cfg.tile_n * depth_of(k, cfg.ping_pong) >> 12)


def _fastest_groups(rows, groups, n, k, num_sms, turns):
    """(seconds, fields)."""
    mean = max(1, -(-rows // max(groups, 1)))
    filled = max(1, min(rows, groups))

    def time(fields, rate):
        tile_m, ping_pong = fields["tile_m"], fields.get("ping_pong", False)
        part_m = tile_m // (1 if ping_pong else fields.get("consumers", 2))
        tiles, used = -(-mean // tile_m), -(-mean // part_m) * part_m
        share = (1 + used / (tiles * tile_m)) / 2               # a tile with half its rows takes three quarters of the time
        waves = -(-filled * tiles * -(-n // fields["tile_n"]) // num_sms)
        return waves * share * 2 * tile_m * fields["tile_n"] * depth_of(k, ping_pong) / (rate * _SM_FLOPS)
    return min(((time(*found), found[0]) for found in _GEMMS if turns or not found[0].get("ping_pong")), key=lambda found: found[0])


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
#: between devices (an estimate, not measured). Numbers of SMs to choose among.
_CARRIES, _SENDS, _CARRIERS = 2e10, 1.5e10, (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32)


def best_experts(rows, groups, n, k, num_sms, base=None, world=1, returns=False):
    """As ``best_groups``, with the SMs set aside that carry rows: a fifth of all at most. A call takes the longer of multiplying and
    carrying, and what nothing hides: carrying the rows that are multiplied first, or returning those that are last.

    Args:
        world: ranks. returns: whether results are carried to other ranks (their own rank's stay); else inputs from all.
    """
    base = base or MoeConfig()
    share, width = ((world - 1) / world, n) if returns else (1, k)
    rate = _CARRIES if world == 1 else _SENDS

    def time(comm):
        seconds, fields = _fastest_groups(rows, groups, n, k, max(1, num_sms - comm), base.turns)
        alone = min(rows, fields["tile_m"] * fields.get("group_m", base.group_m))
        moved, bare = (share * 2 * width * some / (rate * comm) for some in (rows, alone))
        return max(seconds, moved) + bare, fields
    comm = min((c for c in _CARRIERS if c <= max(1, num_sms // 5)), key=lambda c: time(c)[0])
    return base.replace(comm_sms=comm, **time(comm)[1])
