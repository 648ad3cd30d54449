"""The configuration of kernels that only communicate."""

from dataclasses import dataclass
from typing import ClassVar

from ..tiles import Config
from .rules import insist


@dataclass(frozen=True)
class CommConfig(Config):
    """How a kernel that only communicates is cut up.

    Attributes:
        blocks: thread blocks; 0 lets the call choose, by size. warps: of a block; unroll: units of 16 bytes that a lane moves
            at once. A warp moves pieces of 512 * unroll bytes.
        at_once: units that a lane has on the way at once where it combines ranks' pieces, or exchanges them (all_to_all by reading): of
            ``at_once // unroll`` ranks, of one at least.
        algorithm: "auto" chooses by size; "one-shot" sends packets to whoever reads them (all_reduce, all_gather, reduce_scatter,
            all_to_all), "two-shot" lets ranks read each other's memory, "push" write to it (the same four); all_reduce also has
            "read-back" (two shots, the second read from the owners) and "multimem" (two shots by the switch).
        dtype, op, copy_in, copy_out: element type, "sum", "min" or "max", and which copies between ordinary and symmetric
            memory the kernel makes. All are set by the call from its arguments.
    """

    blocks: int = 0
    warps: int = 16
    unroll: int = 4
    at_once: int = 4
    algorithm: str = "auto"
    dtype: str = "bfloat16"
    op: str = "sum"
    copy_in: bool = False
    copy_out: bool = False

    #: Fields that the launch passes as numbers, so that changing them compiles nothing.
    runtime: ClassVar[tuple] = ("blocks",)

    @property
    def multicast(self):
        """Whether the switch combines and distributes."""
        return self.algorithm == "multimem"

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        Config.check(self)
        rules = [
            (0 <= self.blocks < 2 ** 16, f"blocks = {self.blocks}. From 1 to 65535, or 0 to let the call choose."),
            (1 <= self.warps <= 16, f"warps = {self.warps}. A block has 1 to 16."),
            (self.unroll in (1, 2, 4, 8), f"unroll = {self.unroll}. It must be 1, 2, 4 or 8."),
            (self.at_once in (1, 2, 4, 8, 16), f"at_once = {self.at_once}. It must be 1, 2, 4, 8 or 16."),
            (self.algorithm in ("auto", "one-shot", "two-shot", "push", "read-back", "multimem"), f"algorithm = {self.algorithm!r}. It "
             "must be auto, one-shot, two-shot, push, read-back or multimem."),
            (self.op in ("sum", "min", "max"), f"op = {self.op!r}. It must be sum, min or max."),
        ]
        insist(self, rules)


@dataclass(frozen=True)
class NormConfig(CommConfig):
    """The same of all_reduce_rmsnorm, which has algorithms "one-shot" and "two-shot".

    Attributes:
        eps: set by the call from its argument.
    """

    eps: float = 1e-6

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [(not self.multicast, "algorithm = 'multimem'. A residual is added where the sum is made. Use one-shot or two-shot.")])
