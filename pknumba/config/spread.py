"""Configurations of the kernels whose products are spread over ranks."""

from dataclasses import dataclass
from typing import ClassVar

from ..tiles import ITEMSIZE, SHARED_LIMIT
from .choosing import hides_adds
from .products import GemmConfig
from .rules import insist


@dataclass(frozen=True)
class GemmAllReduceConfig(GemmConfig):
    """A GEMM whose tiles communicator SMs sum over ranks.

    Attributes:
        comm_sms: SMs that communicate; the others compute. piece_m: rows that one communicator warp reduces at once.
        intra_sm: no SM only communicates: ranks send tiles to their owners, whose consumers add them to their own sums. comm_sms and
            piece_m then do not matter. pace_m: rows of a tile that a storer sends to another rank at once, waiting until they are written;
            0: a whole panel, waiting until it is read.
    """

    comm_sms: int = 8
    piece_m: int = 8
    intra_sm: bool = False
    pace_m: int = 0

    runtime: ClassVar[tuple] = ("comm_sms",)
    clusters: ClassVar[tuple] = (1,)
    #: Bytes of C per second that a communicating SM reduces: measured on two H200s, benchmarks/results/multigpu.jsonl.
    rate: ClassVar[float] = 14.3e9

    def traffic(self, m, n, k, world):
        """Bytes that a rank's communicators work on."""
        return m * n * ITEMSIZE[self.dtype]

    def sent(self, world):
        """How often an element of the product is sent to another rank, on average: to its owner, and from there to all."""
        return 2 * (world - 1) / world

    def suited(self, tiles, sms, k, world):
        """In parts where SMs have several tiles: of the last, nothing hides that parts take longer. Smaller ones where the product is long
        enough to hide what is sent, as was fastest between two H200s (benchmarks/results/multigpu.jsonl)."""
        if not self.intra_sm or tiles <= 2 * sms:
            return self
        return self.replace(pace_m=32 if hides_adds(k, self.sent(world) * ITEMSIZE[self.dtype]) else 64)

    @property
    def paced(self):
        """Parts of a panel that are sent one after the other."""
        return self.tile_m // self.pace_m if self.pace_m else 1

    @property
    def pieces(self):
        """Pieces of an output tile."""
        return self.tile_m // self.piece_m

    def of(self, dtype, b_transposed):
        """As of any product. Consumers that add float32 panels have registers for 128 x 128 sums."""
        cfg = super().of(dtype, b_transposed)
        return cfg.replace(tile_n=128) if dtype == "float32" and self.intra_sm and cfg.part_m * cfg.tile_n > 128 * 128 else cfg

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (self.comm_sms >= 1, f"comm_sms = {self.comm_sms}. At least one SM must communicate."),
            (self.piece_m >= 1 and self.tile_m % max(self.piece_m, 1) == 0, f"piece_m = {self.piece_m} of tile_m = {self.tile_m}. Pieces "
             "are equal. Use a divisor."),
            (self.pace_m >= 0 and self.pace_m % 8 == 0 and self.tile_m % max(self.pace_m, 1) == 0, f"pace_m = {self.pace_m} of tile_m = "
             f"{self.tile_m}. What is sent at once has a multiple of 8 rows. Use a divisor, or 0.")])


@dataclass(frozen=True)
class GemmReduceScatterConfig(GemmAllReduceConfig):
    """A GEMM whose tiles go to the ranks that own them, where communicator SMs sum them.

    Attributes:
        adds: tiles are added at the owner by the copy engine, rounded at each addition and in any order, instead of summed in
            float32 in rank order; the owner's memory is M * N / R elements instead of M * N.
    """

    adds: bool = False

    @property
    def rate(self):
        """Bytes of traffic per second of a communicating SM: measured on two H200s, benchmarks/results/multigpu.jsonl."""
        return 1.1e10 if self.adds else 1.7e10

    def sent(self, world):
        """To its owner."""
        return (world - 1) / world

    def traffic(self, m, n, k, world):
        """Bytes that a rank's communicators work on: partial products, or what they add up to."""
        return m * n * ITEMSIZE[self.dtype] // (world if self.adds else 1)

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [(not (self.intra_sm and self.adds), "intra_sm with adds. Sums of what the copy engine adds are taken by SMs of their "
                       "own. Choose one.")])


@dataclass(frozen=True)
class AllGatherGemmConfig(GemmConfig):
    """A GEMM whose A comes from all ranks.

    Attributes:
        comm_sms: SMs that move shards; the others compute. chunk_m: rows of a chunk, which is tile_k columns wide.
        depth: chunks that a mover moves before it tells. intra_sm: movers are two more threads of every SM that computes, with a chunk of
            shared memory each; comm_sms then does not matter. written: a mover waits until a chunk is written, not
            merely read, before it moves the next.
    """

    comm_sms: int = 16
    chunk_m: int = 64
    depth: int = 8
    intra_sm: bool = False
    written: bool = False

    runtime: ClassVar[tuple] = ("comm_sms", "depth")
    clusters: ClassVar[tuple] = (1,)
    #: Bytes of A per second that a communicating SM moves: what the copy engine of one copies between two H200s, as measured by
    #: benchmarks/micro.py.
    rate: ClassVar[float] = 4.2e10

    def traffic(self, m, n, k, world):
        """Bytes that a rank's movers move."""
        return m * k * ITEMSIZE[self.dtype] * (world - 1) // world

    @property
    def movers(self):
        """Threads of an SM that move."""
        return 2 if self.intra_sm else 4 * (self.consumers + 1)

    @property
    def shared_bytes(self):
        """Bytes of shared memory of a block."""
        return super().shared_bytes + self.intra_sm * self.movers * self.chunk_m * self.tile_k * ITEMSIZE[self.dtype]

    def fitted(self):
        """With as many panels and stages as there is room for."""
        cfg = self
        while cfg.shared_bytes > SHARED_LIMIT and cfg.c_stages + cfg.stages > 3:
            cfg = cfg.replace(c_stages=cfg.c_stages - 1) if cfg.c_stages > 1 else cfg.replace(stages=cfg.stages - 1)
        return cfg

    def suited(self, tiles, sms, k, world):
        """As of products whose sums are sent: chunks are small, and written one by one, where SMs have several tiles."""
        return self.replace(written=True, chunk_m=32) if self.intra_sm and tiles > 2 * sms else self

    @property
    def strips(self):
        """Chunks one above the other in a band."""
        return self.tile_m // self.chunk_m

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        rules = [
            (self.comm_sms >= 1, f"comm_sms = {self.comm_sms}. At least one SM must communicate."),
            (self.chunk_m > 0 and self.tile_m % self.chunk_m == 0 and self.chunk_m % 8 == 0, f"chunk_m = {self.chunk_m} of tile_m = "
             f"{self.tile_m}. Chunks are equal and have a multiple of 8 rows. Use a divisor."),
            (self.depth >= 1, f"depth = {self.depth}. At least 1."),
        ]
        insist(self, rules)


@dataclass(frozen=True)
class GemmAllToAllConfig(GemmConfig):
    """A GEMM whose tiles go to the ranks that get them."""

    clusters: ClassVar[tuple] = (1,)
