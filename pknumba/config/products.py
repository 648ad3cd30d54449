"""Configurations of the kernels that multiply matrices, on one rank and over several."""

from dataclasses import dataclass
from typing import ClassVar

from ..errors import ConfigError
from ..tiles import DTYPES, ITEMSIZE, SHARED_LIMIT, Config
from .rules import insist

#: Bytes of shared memory beside the tiles: semaphores, and what aligning the first tile may cost.
_RESERVED = 2048


@dataclass(frozen=True)
class GemmConfig(Config):
    """How a GEMM is cut up.

    Attributes:
        tile_m, tile_n: rows and columns of an output tile. tile_k: depth of one ring stage.
        stages: depth of the ring of A and B tiles. c_stages: depth of the ring of output panels.
        consumers: warpgroups that multiply. ping_pong: each consumer has its own tile (two consumers), so that one stores
            while the other multiplies; otherwise they share the rows of a tile.
        group_m: tile rows walked together, for reuse in L2.
        cluster: blocks, 1, 2 or 4, whose tiles lie above each other and share B: each loads a part of it and sends it to all.
        split_k: the blocks of a cluster (2 to 8) have one tile and each multiplies a part of the depth; then as many of them as divide
            the columns sum a share each. For few tiles and long sums.
        slices: of a tile's depth (a power of two), each multiplied by a block of its own; then as many of them as divide the columns sum a
            share each, through memory. For few tiles and long sums, on all SMs.
        dtype: "bfloat16" or "float16". b_transposed: B is the transpose of a row-major (N, K) array. Both are set by the
            call from its arrays.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    c_stages: int = 2
    consumers: int = 2
    ping_pong: bool = False
    group_m: int = 12
    cluster: int = 1
    split_k: bool = False
    slices: int = 1
    dtype: str = "bfloat16"
    b_transposed: bool = True

    #: Fields that the launch passes as numbers, so that changing them compiles nothing.
    runtime: ClassVar[tuple] = ()
    #: Sizes of clusters that the family's kernels run in.
    clusters: ClassVar[tuple] = (1, 2, 4)
    #: What is done to the product before it is rounded.
    activation: ClassVar[str] = "none"
    #: Whether output tiles are added to what is there.
    adds: ClassVar[bool] = False

    @property
    def parts(self):
        """Consumers that share a tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def part_m(self):
        return self.tile_m // self.parts

    @property
    def rows_together(self):
        """Tile rows of a cluster."""
        return 1 if self.split_k else self.cluster

    @property
    def depths(self):
        """Blocks that share the depth of a tile."""
        return self.cluster if self.split_k else self.slices

    @property
    def sharers(self):
        """Blocks that sum and store a share of a tile whose depth is split."""
        return next(n for n in (16, 8, 4, 2, 1) if n <= self.depths and self.tile_n % (16 * n) == 0)

    @property
    def share_n(self):
        """Columns of a tile that a block stores."""
        return self.tile_n // self.sharers

    @property
    def panel_n(self):
        """Columns of the output that leave at once: one swizzle span."""
        return next(n for n in (64, 32, 16, self.share_n) if self.share_n % n == 0)

    @property
    def panels(self):
        """Panels of the output that a block stores."""
        return self.share_n // self.panel_n

    @property
    def c_lag(self):
        """Stores that may still be reading their panel while the next one is stored."""
        return 1 if self.c_stages > 1 and self.panels > 1 else 0

    @property
    def c_flying(self):
        """As ``c_lag``, of kernels that use all of the ring."""
        return min(self.c_stages, self.panels) - 1

    @property
    def c_swizzle(self):
        return max(32, self.panel_n * ITEMSIZE[self.dtype])

    @property
    def b_shape(self):
        return (self.tile_n, self.tile_k) if self.b_transposed else (self.tile_k, self.tile_n)

    @property
    def a_swizzle(self):
        return 128

    @property
    def b_swizzle(self):
        return 128 if self.b_transposed else next(s for s in (128, 64, 32) if self.tile_n * ITEMSIZE[self.dtype] % s == 0)

    @property
    def sum_swizzle(self):
        """Of a share of float32 sums."""
        return next(s for s in (128, 64, 32) if self.share_n * 4 % s == 0)

    def fitted(self):
        """With as many panels and stages as there is room for."""
        return self

    @property
    def shared_bytes(self):
        """Bytes of shared memory of a block."""
        size = ITEMSIZE[self.dtype]
        stage = (self.tile_m + self.tile_n) * self.tile_k * size
        return self.stages * stage + self.c_stages * self.parts * self.part_m * self.panel_n * size + _RESERVED

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        Config.check(self)
        name = type(self).__name__
        if self.consumers not in (1, 2, 3):
            raise ConfigError(f"{name}: consumers = {self.consumers}. A block has 1, 2 or 3 consumer warpgroups.", config=self)
        rules = [
            (self.dtype in DTYPES, f"dtype = {self.dtype!r}. Matrix multiplication takes {' or '.join(DTYPES)}."),
            (not self.ping_pong or self.consumers == 2, f"ping_pong with {self.consumers} consumers. Turns are for two consumers."),
            (self.tile_m > 0 and self.tile_m % (64 * self.parts) == 0, f"tile_m = {self.tile_m} for {self.parts} consumers. Each takes a "
             "multiple of 64 rows."),
            (self.tile_n % 16 == 0 and 16 <= self.tile_n <= 256, f"tile_n = {self.tile_n}. wgmma takes multiples of 16 columns up to 256."),
            (self.tile_k > 0 and self.tile_k % 64 == 0, f"tile_k = {self.tile_k}. A stage is a multiple of 64 deep, one "
             "128-byte swizzle span."),
            (self.stages >= 2 and self.c_stages >= 1, f"stages = {self.stages}, c_stages = {self.c_stages}. At least 2 and 1."),
            (self.group_m >= 1, f"group_m = {self.group_m}. At least 1."),
            (self.split_k or self.cluster in self.clusters, f"cluster = {self.cluster}. Blocks of a cluster: "
             f"{' or '.join(map(str, self.clusters))}."),
            (self.group_m % max(self.rows_together, 1) == 0, f"group_m = {self.group_m} in clusters of {self.cluster}. Its tile rows are "
             "walked together. Use a multiple."),
            (self.part_m * self.tile_n // 128 <= {1: 128, 2: 192, 3: 96}[self.consumers], f"tile {self.tile_m} x {self.tile_n} takes "
             f"{self.part_m * self.tile_n // 128} registers of sums in each thread of {self.consumers} consumers. Use a smaller tile."),
        ]
        insist(self, [*rules, *self._split_rules()])
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigError(f"{name}: needs {self.shared_bytes} bytes of shared memory. sm_90 offers {SHARED_LIMIT}. "
                              "Use fewer stages or a smaller tile.", config=self, needed=self.shared_bytes, offered=SHARED_LIMIT)

    def _split_rules(self):
        rules = [(self.slices >= 1 and self.slices & self.slices - 1 == 0, f"slices = {self.slices}. Blocks that share a tile are "
                  "counted by counters that wrap. Use a power of two.")]
        if self.slices > 1:
            rules += [
                (self.slices <= 8 or self.part_m * self.tile_n <= 64 * 128, f"slices = {self.slices} of a tile {self.tile_m} x {self.tile_n}. "
                 "With more than 8 a consumer's sums take 64 registers at most. Use a smaller tile."),
                (len(self.clusters) > 1, f"slices = {self.slices}. Blocks of this family share no tile. Use GemmConfig."),
                (self.cluster == 1, f"slices = {self.slices} in clusters of {self.cluster}. Blocks that share a tile meet in memory. Use "
                 "cluster = 1."),
                (not self.ping_pong, f"slices = {self.slices} with ping_pong. Consumers of a tile that is shared work together. Use "
                 "ping_pong = False."),
            ]
        if not self.split_k:
            return rules
        rules.append((self.slices == 1, f"slices = {self.slices} with split_k. A tile's depth is split in one way. Use one of them."))
        sums = 4 * self.tile_m * (self.tile_n + self.cluster * self.share_n)
        ring = self.stages * (self.tile_m + self.tile_n) * self.tile_k * ITEMSIZE[self.dtype]
        return rules + [
            (len(self.clusters) > 1, "split_k. Blocks of this family share no tile. Use GemmConfig."),
            (2 <= self.cluster <= 8, f"cluster = {self.cluster} with split_k. Two to eight blocks share a tile's depth."),
            (not self.ping_pong, "split_k with ping_pong. Consumers of a tile that is split work together. Use ping_pong = False."),
            (sums <= ring, f"split_k of a tile {self.tile_m} x {self.tile_n}: its sums, sent and received, take {sums} bytes. They lie "
             f"over the ring of A and B, which has {ring}. Use more stages or a smaller tile."),
        ]


@dataclass(frozen=True)
class GemmAllReduceConfig(GemmConfig):
    """A GEMM whose tiles communicator SMs sum over ranks.

    Attributes:
        comm_sms: SMs that communicate; the others compute. piece_m: rows that one communicator warp reduces at once.
        intra_sm: no SM only communicates: ranks send tiles to their owners, whose consumers add them to their own sums. comm_sms and
            piece_m then do not matter.
    """

    comm_sms: int = 8
    piece_m: int = 8
    intra_sm: bool = False

    runtime: ClassVar[tuple] = ("comm_sms",)
    clusters: ClassVar[tuple] = (1,)
    #: Bytes of C per second that a communicating SM reduces: measured on two H200s, benchmarks/results/multigpu.jsonl.
    rate: ClassVar[float] = 14.3e9

    def traffic(self, m, n, k, world):
        """Bytes that a rank's communicators work on."""
        return m * n * ITEMSIZE[self.dtype]

    @property
    def pieces(self):
        """Pieces of an output tile."""
        return self.tile_m // self.piece_m

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        super().check()
        insist(self, [
            (self.comm_sms >= 1, f"comm_sms = {self.comm_sms}. At least one SM must communicate."),
            (self.piece_m >= 1 and self.tile_m % max(self.piece_m, 1) == 0, f"piece_m = {self.piece_m} of tile_m = {self.tile_m}. Pieces "
             "are equal. Use a divisor.")])


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
            shared memory each; comm_sms then does not matter.
    """

    comm_sms: int = 16
    chunk_m: int = 64
    depth: int = 8
    intra_sm: bool = False

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
