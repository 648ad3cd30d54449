"""The configuration of the kernels that multiply matrices; ``spread`` has those of products over several ranks."""

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
        slices: of a tile's depth (a power of two), each multiplied by a block of its own; then as many of them as divide the columns sum a
            share each, through memory. For few tiles and long sums, on all SMs.
        stagger: slices, or columns of tiles, begin at different depths and go around: blocks ask different places of memory at once.
        ahead: stages that a block asks the L2 for while it waits for the kernel before this one to end (with ``direct``).
        direct: consumers store the output themselves, each its own part, through panels of its own; otherwise they hand panels to a thread
            that has the copy engine store them.
        dtype: "bfloat16", "float16" or "float32", which is multiplied as tf32. b_transposed: B is the transpose of a row-major (N, K)
            array. Both are set by the call from its arrays (``of``).
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
    slices: int = 1
    stagger: bool = False
    ahead: int = 0
    direct: bool = False
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
    #: What the family's kernels multiply.
    dtypes: ClassVar[tuple] = (*DTYPES, "float32")

    def of(self, dtype, b_transposed):
        """The same for arrays of that kind. Stages of float32 are half as deep and panels twice as large, of which there are as many as
        there is room for; every block has all of its tile's depth, and a storer stores."""
        cfg = self.replace(dtype=dtype, b_transposed=b_transposed)
        if dtype != "float32" or self.dtype == dtype:
            return cfg
        cfg = cfg.replace(tile_k=self.tile_k // 2, slices=1, direct=False, ahead=0)
        return next((c for c in (cfg.replace(c_stages=n) for n in range(self.c_stages, 0, -1)) if c.shared_bytes <= SHARED_LIMIT), cfg)

    @property
    def parts(self):
        """Consumers that share a tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def part_m(self):
        return self.tile_m // self.parts

    @property
    def sums(self):
        """Registers that each thread of a consumer has for sums."""
        return self.part_m * self.tile_n // 128

    @property
    def sharers(self):
        """Blocks that sum and store a share of a tile whose depth is split."""
        return next(n for n in (16, 8, 4, 2, 1) if n <= self.slices and self.tile_n % (16 * n) == 0)

    @property
    def share_n(self):
        """Columns of a tile that a block stores."""
        return self.tile_n // self.sharers

    @property
    def panel_n(self):
        """Columns of the output that leave at once: one swizzle span."""
        return next(n for n in (128 // ITEMSIZE[self.dtype], 32, 16, self.share_n) if self.share_n % n == 0)

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

    def fitted(self):
        """With as many panels and stages as there is room for."""
        return self

    def suited(self, tiles, sms, k, world):
        """With what depends on how many tiles of depth k there are for that many SMs of each rank of a world."""
        return self

    @property
    def shared_bytes(self):
        """Bytes of shared memory of a block."""
        size = ITEMSIZE[self.dtype]
        stage = (self.tile_m + self.tile_n) * self.tile_k * size
        rows = 64 * self.consumers if self.direct else self.tile_m
        return self.stages * stage + self.c_stages * rows * self.panel_n * size + _RESERVED

    def check(self):
        """Raise ConfigError unless sm_90 can run it."""
        Config.check(self)
        name = type(self).__name__
        if self.consumers not in (1, 2, 3):
            raise ConfigError(f"{name}: consumers = {self.consumers}. A block has 1, 2 or 3 consumer warpgroups.", config=self)
        rules = [
            (self.dtype in self.dtypes, f"dtype = {self.dtype!r}. Matrix multiplication takes {' or '.join(self.dtypes)}."),
            (self.dtype != "float32" or self.b_transposed, "dtype = 'float32' with b_transposed = False. The tensor cores take float32 "
             "along the depth. Pass the transpose of a row-major (N, K) array."),
            (not self.ping_pong or self.consumers == 2, f"ping_pong with {self.consumers} consumers. Turns are for two consumers."),
            (self.tile_m > 0 and self.tile_m % (64 * self.parts) == 0, f"tile_m = {self.tile_m} for {self.parts} consumers. Each takes a "
             "multiple of 64 rows."),
            (self.tile_n % 16 == 0 and 16 <= self.tile_n <= 256, f"tile_n = {self.tile_n}. wgmma takes multiples of 16 columns up to 256."),
            (self.tile_k > 0 and self.tile_k * ITEMSIZE[self.dtype] % 128 == 0, f"tile_k = {self.tile_k} of {self.dtype}. A stage is a "
             "multiple of one 128-byte swizzle span deep."),
            (self.stages >= 2 and self.c_stages >= 1, f"stages = {self.stages}, c_stages = {self.c_stages}. At least 2 and 1."),
            (self.group_m >= 1, f"group_m = {self.group_m}. At least 1."),
            (self.ahead >= 0, f"ahead = {self.ahead}. Stages, 0 at least."),
            (not self.ahead or self.direct, f"ahead = {self.ahead} with direct = False. Roles that follow by themselves ask early. Use 0."),
            (not self.direct or len(self.clusters) > 1, "direct = True. This family's tiles leave by the copy engine. Use False."),
            (not self.direct or ITEMSIZE[self.dtype] == 2, f"direct = True of {self.dtype}. Consumers store 16-bit panels. Use False."),
            (self.cluster in self.clusters, f"cluster = {self.cluster}. Blocks of a cluster: "
             f"{' or '.join(map(str, self.clusters))}."),
            (self.group_m % max(self.cluster, 1) == 0, f"group_m = {self.group_m} in clusters of {self.cluster}. Its tile rows are "
             "walked together. Use a multiple."),
            (self.sums <= {1: 128, 2: 192, 3: 96}[self.consumers], f"tile {self.tile_m} x {self.tile_n} takes {self.sums} "
             f"registers of sums in each thread of {self.consumers} consumers. Use a smaller tile."),
        ]
        insist(self, [*rules, *self._slice_rules()])
        if self.shared_bytes > SHARED_LIMIT:
            raise ConfigError(f"{name}: needs {self.shared_bytes} bytes of shared memory. sm_90 offers {SHARED_LIMIT}. "
                              "Use fewer stages or a smaller tile.", config=self, needed=self.shared_bytes, offered=SHARED_LIMIT)

    def _slice_rules(self):
        rules = [(self.slices >= 1 and self.slices & self.slices - 1 == 0, f"slices = {self.slices}. Tiles are added up in a circle. Use a "
                  "power of two.")]
        if self.slices > 1:
            most = {1: 128, 2: 128, 3: 64}[self.consumers] // (2 if self.slices > 16 else 1)
            rules += [
                (self.sums <= most, f"slices = {self.slices} of a tile {self.tile_m} x {self.tile_n}. Threads of {self.consumers} "
                 f"consumers that add up so many have registers for {most} sums each, not for {self.sums}. Use a smaller tile."),
                (len(self.clusters) > 1, f"slices = {self.slices}. Blocks of this family share no tile. Use GemmConfig."),
                (not self.ping_pong, f"slices = {self.slices} with ping_pong. Consumers of a tile that is shared work together. Use "
                 "ping_pong = False."),
            ]
        return rules
