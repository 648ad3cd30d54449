"""All-gather + GEMM: on every rank C = A @ B, where A is the ranks' shards one after the other and B is the rank's own."""

from ..config import AllGatherGemmConfig
from ..primitives import (div, expect, i32, least, load_async, mod, ring, signal, store_async, store_async_read_wait, store_async_wait,
                          tile_coord, wait, wait_until)
from ..templates import LCSM, Gathered, multiply, repeated
from ..tiles import Semaphore, Tile, shared
from .gemm import Gemm


class AllGatherGemm(LCSM, Gemm):
    """Movers, on SMs of their own or beside others, push bands of this rank's shard to its peers, nearest first; consumers begin with the
    shard at hand and go on with that of the next rank, and so on round, as bands arrive."""

    config, form, alone = AllGatherGemmConfig, Gathered, Gemm
    tensors, symmetric, counters = ("A", "B", "C", "shard", "mail"), ("A", "mail"), ("arrived",)
    numbers = {**Gemm.numbers, **Gathered.layout}
    helper_registers = 56
    movers_first = True                         # or else tiles might wait for bands while the movers of another rank find no SM

    @classmethod
    def defaults(kernel):
        """Within SMs."""
        return kernel.config(intra_sm=True)

    @staticmethod
    def shared(cfg):
        return shared(**Gemm.shared(cfg)._asdict(), full=Semaphore(cfg.movers, by="communicator"),
                      chunk=Tile((cfg.movers, cfg.chunk_m, cfg.tile_k), cfg.dtype, cfg.a_swizzle, over="" if cfg.intra_sm else "a, b"))

    @staticmethod
    def locate(cfg, g, task):
        """Tile rows from this rank's first on, round."""
        row, col = tile_coord(task.id, g.grid, g.group)
        return mod(i32(row + g.start), g.grid[0]), col, 0, None

    @staticmethod
    def band(cfg, g, row):
        """Number of the band that a row of A comes in: bands of tile_m rows from each shard's first row on."""
        long = g.extra * (g.rows + 1)               # rows in shards that have one more
        inside = row < long
        owner = div(row, g.rows + 1) if inside else g.extra + div(row - long, g.rows)
        return i32(owner * g.bands + div(row - owner * g.rows - least(owner, g.extra), cfg.tile_m))

    @staticmethod
    def loader(cfg, g, s, task):                # one thread: waits for the bands of its tile row
        low = task.row * cfg.tile_m
        high = least(low + cfg.tile_m, g.total) - 1
        own = low >= g.first and high < g.first + g.mine
        if not own:
            for band in range(AllGatherGemm.band(cfg, g, low), AllGatherGemm.band(cfg, g, high) + 1):
                wait_until(g.arrived, i32(band), g.epoch * g.parts)
        for k in range(g.k_tiles):
            stage, phase = ring(task.step + k, cfg.stages)
            wait(s.ab_empty[stage], phase ^ 1)
            expect(s.ab_full[stage], s.a[stage], s.b[stage])
            if own:
                load_async(s.a[stage], g.shard, (task.row, k), s.ab_full[stage], -g.first)
            else:
                load_async(s.a[stage], g.A, (task.row, k), s.ab_full[stage])
            load_async(s.b[stage], g.B, (task.col, k) if cfg.b_transposed else (k, task.col), s.ab_full[stage])

    @staticmethod
    def pace(cfg, g, s, task):
        """Until a chunk may be overwritten: what waits for the link in a block's copy engine holds up what the block loads."""
        if cfg.written:
            store_async_wait(0)
        else:
            store_async_read_wait(0)

    @staticmethod
    def communicator(cfg, g, s, task):          # one thread: g.depth chunks of a band, through shared memory to a peer
        step, part = div(task.id, g.parts), mod(task.id, g.parts)
        peer = mod(i32(g.rank + 2 * g.world_size - g.skip - div(step, g.bands)), g.world_size)
        row = mod(step, g.bands) * cfg.strips + mod(part, cfg.strips)
        wait_until(g.finished, peer, i32((g.epoch - 1) * g.workers))
        for k in range(g.depth):
            _, phase = ring(task.step + k, 1)
            expect(s.full[task.part], s.chunk[task.part])
            load_async(s.chunk[task.part], g.shard, (row, div(part, cfg.strips) * g.depth + k), s.full[task.part])
            wait(s.full[task.part], phase)
            store_async(g.mail, (row, div(part, cfg.strips) * g.depth + k), s.chunk[task.part], peer)
            AllGatherGemm.pace(cfg, g, s, task)
        store_async_wait(0)                     # written at the peer
        signal(g.arrived, i32(g.rank * g.bands + mod(step, g.bands)), peer)


@repeated("A", "B", "out")
def all_gather_gemm(world, A, B, *, rows=None, out=None, config=None, stream=None):
    """C = numpy.concatenate(A of all ranks) @ B, with this rank's B, on every rank; collective.

    Args:
        world: World of this rank; every rank calls with arrays of the same dtype, K and N.
        A: this rank's shard, bfloat16, float16 or float32 (as in ``gemm``), rows contiguous: ``numpy.array_split(whole,
            world.size)[world.rank]``, so the first M % size ranks have one row more.
        B: (K, N), row-major or the transpose of a row-major (N, K), which it must be of float32.
        rows: M, the rows of all shards together; None: world.size times those of A.
        out: (M, N) of the same dtype, any memory of this rank, rows contiguous; made with A's library if None.
        config: AllGatherGemmConfig; chosen by shape if None. stream: as in ``gemm``; to be passed where two streams work at
            once, since calls of one shape share counters.

    Returns: C (M, N), rounded once. The world keeps symmetric memory of M * K elements on each rank for this shape.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return multiply(AllGatherGemm, world, A, B, out, config, stream, rows)
