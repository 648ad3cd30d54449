"""Configurations of attention."""

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import ConfigError
from ..tiles import DTYPES, ITEMSIZE, SHARED_LIMIT, Config
from .rules import insist

#: Bytes of shared memory beside the tiles: semaphores, and what aligning the first tile may cost.
_RESERVED = 2048


@dataclass(frozen=True)
class AttentionConfig(Config):
    """How attention is cut up.

    Attributes:
        consumers: warpgroups of a block; each has ``part_q`` queries of a tile. kv: keys of a block of K and V.
        stages: depth of the rings of K and of V. q_stages: tiles of Q in shared memory; a result takes the place of its tile, so with two
            the next tile comes while this one is computed.
        slack: powers of two by which scores may exceed the maximum that weights are relative to, before it is raised.
        width: elements of a head, rounded up to 64; causal; dtype: "bfloat16" or "float16". These are set by the call.
    """

    consumers: int = 3
    kv: int = 80
    stages: int = 3
    q_stages: int = 2
    slack: int = 8
    width: int = 128
    causal: bool = False
    dtype: str = "bfloat16"

    #: Fields that the launch passes as numbers, so that changing them compiles nothing.
    runtime: ClassVar[tuple] = ("slack",)
    #: Queries of a consumer: the rows of one wgmma.
    part_q: ClassVar[int] = 64
    #: What the width is a multiple of.
    step: ClassVar[int] = 64
    #: Bytes of the swizzle span of every tile.
    swizzle: ClassVar[int] = 128
    #: Registers for sums by number of consumers.
    most_sums: ClassVar[dict] = {1: 256, 2: 224, 3: 144}
    #: Whether keys come from all ranks in turn, and whether every rank has an early and a late part of the sequence.
    spread: ClassVar[bool] = False
    zigzag: ClassVar[bool] = False
    #: Whether a task has a part of the keys, and its result, in float32 and beside Q, is to be merged with others.
    splits: ClassVar[bool] = False
    #: Consumers share a tile.
    ping_pong: ClassVar[bool] = False

    @property
    def tile_q(self):
        """Queries of a tile."""
        return self.consumers * self.part_q

    @property
    def o_dtype(self):
        """What results are stored as."""
        return "float32" if self.splits else self.dtype

    @property
    def over(self):
        """Whose shared memory the result takes."""
        return "" if self.splits else "q"

    @property
    def shared_bytes(self):
        """Bytes of shared memory of a block."""
        rows = self.tile_q * self.q_stages + 2 * self.stages * self.kv
        return rows * self.width * ITEMSIZE[self.dtype] + _RESERVED

    @property
    def sums(self):
        """Registers of a consumer's thread that hold scores, two blocks of weights, and the result."""
        return self.kv + self.width // 2

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        Config.check(self)
        name = type(self).__name__
        rules = [
            (self.dtype in DTYPES, f"dtype = {self.dtype!r}. Matrix multiplication takes {' or '.join(DTYPES)}."),
            (self.consumers in (1, 2, 3), f"consumers = {self.consumers}. A block has 1, 2 or 3 consumer warpgroups."),
            (self.width in (64, 128, 192, 256), f"width = {self.width}. Heads have up to 256 elements, in steps of 64."),
            (self.kv % 16 == 0 and 16 <= self.kv <= 256, f"kv = {self.kv}. wgmma takes multiples of 16 keys up to 256."),
            (self.stages >= 2, f"stages = {self.stages}. At least 2."),
            (self.q_stages in (1, 2), f"q_stages = {self.q_stages}. One or two tiles of Q."),
            (0 <= self.slack <= 64, f"slack = {self.slack}. From 0 to 64 powers of two."),
            (self.sums <= self.most_sums.get(self.consumers, 0), f"kv = {self.kv} with width = {self.width} takes {self.sums} "
             f"registers in each thread of {self.consumers} consumers. Use fewer keys or consumers."),
        ]
        insist(self, rules)
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigError(f"{name}: needs {self.shared_bytes} bytes of shared memory. sm_90 offers {SHARED_LIMIT}. "
                              "Use fewer stages or keys.", config=self, needed=self.shared_bytes, offered=SHARED_LIMIT)


@dataclass(frozen=True)
class MovingAttentionConfig(AttentionConfig):
    """Attention whose Q, K or V are moved between ranks.

    Attributes:
        comm_sms: SMs that move; the others compute. depth: chunks that a mover moves before it tells.
    """

    kv: int = 64
    stages: int = 4
    comm_sms: int = 16
    depth: int = 8

    runtime: ClassVar[tuple] = ("slack", "comm_sms", "depth")
    most_sums: ClassVar[dict] = {1: 256, 2: 208, 3: 128}

    @property
    def movers(self):
        """Threads of a communicating SM that move."""
        return 4 * (self.consumers + 1)

    @property
    def mail_rows(self):
        """Rows of a chunk: movers share the memory of the rings."""
        return min(256, 2 * self.stages * self.kv // self.movers // 8 * 8)

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (self.comm_sms >= 1, f"comm_sms = {self.comm_sms}. At least one SM must communicate."),
            (self.depth >= 1, f"depth = {self.depth}. At least 1."),
            (self.mail_rows >= 8, f"{self.stages} stages of {self.kv} keys for {self.movers} movers. Each has 8 rows at least. Use more "
             "stages or keys.")])


@dataclass(frozen=True)
class RingAttentionConfig(MovingAttentionConfig):
    """Attention whose keys come from all ranks in turn.

    Attributes:
        zigzag: every rank has an early and a late piece of the sequence; set by the call.
    """

    zigzag: bool = False

    spread: ClassVar[bool] = True


@dataclass(frozen=True)
class UlyssesAttentionConfig(MovingAttentionConfig):
    """Attention with a share of the heads of every rank."""


@dataclass(frozen=True)
class DecodeAttentionConfig(AttentionConfig):
    """Attention of few queries, whose keys are cut into parts.

    Attributes:
        part_stages: depth of the ring of results that are merged.
    """

    consumers: int = 1
    kv: int = 64
    q_stages: int = 1
    part_stages: int = 2

    splits: ClassVar[bool] = True

    @property
    def shared_bytes(self):
        """Bytes of shared memory of a block."""
        size = ITEMSIZE[self.dtype]
        return ((self.part_q + 2 * self.stages * self.kv) * size + self.part_q * 4 * (1 + self.part_stages)) * self.width + _RESERVED

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (self.consumers == self.q_stages == 1, f"consumers = {self.consumers}, q_stages = {self.q_stages}. One consumer has all "
             "queries of a head of K and V."),
            (self.part_stages >= 1, f"part_stages = {self.part_stages}. At least 1.")])


#: FLOP/s of an SM that computes, and bytes per second that one moves over a link: measured on H200s (attention.jsonl and
#: micro.jsonl of benchmarks/results).
_SM_FLOPS, _SM_MOVES = 5e12, 4.5e10
#: width -> fields that are fastest.
_BEST = {
    64: dict(consumers=3, kv=96, stages=4),
    128: dict(consumers=3, kv=80, stages=3),
    192: dict(consumers=2, kv=96, stages=2, q_stages=1),
    256: dict(consumers=2, kv=64, stages=2, q_stages=1),
}


def attention_config(width, causal=False, family=AttentionConfig):
    """The configuration of that family expected to be fastest for heads of ``width`` elements."""
    width = -(-width // 64) * 64
    cfg = family(width=width, causal=causal, **_BEST[width])
    return cfg.replace(kv=64, stages=4) if cfg.sums > cfg.most_sums[cfg.consumers] else cfg


def moving_sms(flops, moved, sms):
    """SMs of a rank that move, so that all is moved in a sixth of the time that the others compute: 6 to 16, an eighth of them at most.

    Args:
        flops, moved: operations and bytes of the rank that has most. sms: that a rank has.
    """
    needed = 6 * moved / _SM_MOVES * sms * _SM_FLOPS / max(1, flops)
    return max(1, min(16, sms // 8, max(6, math.ceil(needed))))


def decode_config(width):
    """The configuration expected to be fastest for one query of every sequence."""
    width = -(-width // 64) * 64
    cfg = DecodeAttentionConfig(width=width, stages={64: 6, 128: 3}.get(width, 2))
    return cfg if width < 192 else cfg.replace(kv=64 if width == 192 else 32, part_stages=1)
