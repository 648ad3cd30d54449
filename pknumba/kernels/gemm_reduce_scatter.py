"""GEMM + reduce-scatter: rank r gets its share of the rows of the sum over ranks s of A_s @ B_s, in ordinary memory."""

from ..config import GemmReduceScatterConfig, hides_adds
from ..errors import ConfigError
from ..primitives import (add_panel, arrive, div, expect, fence_async, i32, least, load_async, mod, reduce, ring, signal, store,
                          store_async, store_async_read_wait, store_async_wait, take, tile_coord, wait, wait_until)
from ..templates import LCSC, LCSI, Added, OwnedRows, Scattered, multiply, repeated
from ..tiles import Semaphore, Tile, shared
from .gemm import Gemm


class GemmReduceScatter(LCSC, Gemm):
    """Compute SMs store partial tiles to the rank that owns them, each source in a slot of its own; the owner's communicators add
    the slots in rank order, in float32."""

    config, form, alone = GemmReduceScatterConfig, Scattered, Gemm
    tensors, symmetric, counters = ("A", "B", "C", "parts", "out"), ("C", "parts"), ("done",)
    numbers = {**Gemm.numbers, "rows": 1, "extra": 1, "group": 1}
    helper_registers = 48

    @staticmethod
    def locate(cfg, g, task):
        """Tile after tile of all shares at once; each rank starts with another's and ends with its own."""
        row, col = tile_coord(div(task.id, g.world_size), g.grid, g.group)
        peer = mod(i32(task.id + g.rank + 1), g.world_size)
        return row, col, i32(peer * g.rows + least(peer, g.extra)), peer

    @staticmethod
    def storer(cfg, g, s, task):
        Gemm.storer(cfg, g, s, task)
        store_async_wait(0)                     # written at the peer, not merely read from shared memory
        signal(g.done, div(task.id, g.world_size), task.peer)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: piece task.part of the task.turn-th tile of this rank's share
        wait_until(g.done, task.turn, g.epoch * g.world_size, copies=False)
        place = task.row * cfg.pieces + task.part, task.col
        reduce(g.parts, place, (cfg.piece_m, cfg.tile_n), g.out, place)


class GemmReduceScatterAdd(GemmReduceScatter):
    """Compute SMs add partial tiles to the owner's memory; its communicators take the sum and leave zero."""

    form, title = Added, GemmReduceScatter.__name__

    @classmethod
    def defaults(kernel):
        """Adds."""
        return kernel.config(adds=True)

    @staticmethod
    def communicator(cfg, g, s, task):
        wait_until(g.done, task.turn, g.epoch * g.world_size, copies=False)
        take(g.parts, (task.row * cfg.pieces + task.part, task.col), (cfg.piece_m, cfg.tile_n), g.out)


class GemmReduceScatterInside(LCSI, Gemm):
    """No SM only communicates. Each rank begins with the tiles of the next and sends them to their owner; its own come last, and its
    consumers add to them, in float32 and in the order of ranks, what the others have sent meanwhile."""

    config, form, alone, title = GemmReduceScatterConfig, OwnedRows, Gemm, GemmReduceScatter.__name__
    tensors, symmetric, counters = ("A", "B", "slots", "out"), ("slots",), ("done",)
    numbers = {**Gemm.numbers, **OwnedRows.layout}
    helper_registers = 56

    @staticmethod
    def shared(cfg):
        """The output's panels, once the others' tiles have left them, are a ring of what others sent for own tiles."""
        parts = Tile((cfg.c_stages, cfg.paced, cfg.tile_m // cfg.paced, cfg.panel_n), cfg.dtype, cfg.c_swizzle, over="c")
        return shared(**Gemm.shared(cfg)._asdict(), c_parts=parts, sum_empty=Semaphore(cfg.c_stages, by="storer"),
                      sum_got=Semaphore(cfg.c_stages, by="communicator"), sum_full=Semaphore(cfg.c_stages, by="consumer"))

    @staticmethod
    def locate(cfg, g, task):
        """Tile after tile of one share, then of the next."""
        tile = mod(i32(task.id + g.start), g.tasks)
        row, col = tile_coord(mod(tile, g.per), g.grid, cfg.group_m)
        peer = div(tile, g.per)
        return row, col, i32(peer * g.rows + least(peer, g.extra)), peer

    @staticmethod
    def number(cfg, g, task):
        """Number of a task's tile among those that its owner has."""
        return mod(mod(i32(task.id + g.start), g.tasks), g.per)

    @staticmethod
    def fetched(cfg, g, task):
        """Panels that this block has fetched before an own tile: the others' tiles come first."""
        return i32(div(i32(task.id - g.others), g.blocks) * cfg.panels * g.sources)

    @staticmethod
    def panel(cfg, g, step):
        """Number in its tile of the panel that a block fetches in a step: from every source in turn."""
        return mod(div(step, g.sources), cfg.panels)

    @staticmethod
    def sums(cfg, g, s, task, acc):
        """A consumer's sums and the others', in the order of ranks, to the storer."""
        first = GemmReduceScatterInside.fetched(cfg, g, task)
        for step in range(first, first + cfg.panels * g.sources):
            stage, phase = ring(step, cfg.c_stages)
            wait(s.sum_got[stage], phase)
            acc = add_panel(acc, s.c[stage, task.part], GemmReduceScatterInside.panel(cfg, g, step))
            if mod(step + 1, g.sources) == 0:
                store(s.c[stage, task.part], acc, GemmReduceScatterInside.panel(cfg, g, step))
                fence_async(s.c[stage, task.part])
            arrive(s.sum_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):              # a warpgroup
        acc = Gemm.product(cfg, g, s, task)
        if cfg.ping_pong:
            _, phase = ring(task.turn, 1)
            wait(s.c_turn[0], phase ^ 1)
        if task.id >= g.others:
            GemmReduceScatterInside.sums(cfg, g, s, task, acc)
        else:
            Gemm.panels(cfg, g, s, task, acc)
        if cfg.ping_pong:
            arrive(s.c_turn[0])

    @staticmethod
    def pace(cfg, g, s, task):
        """Until more may be sent: what waits for the link in a block's copy engine holds up what the block loads."""
        if cfg.paced > 1:
            store_async_wait(0)
        else:
            store_async_read_wait(0)

    @staticmethod
    def send(cfg, g, s, task):
        """A tile to its owner, once that has come to this call: it needs no more what it got last time."""
        wait_until(g.ready, task.peer, g.epoch)
        number = GemmReduceScatterInside.number(cfg, g, task)
        for p in range(cfg.panels):
            stage, phase = ring(task.turn * cfg.panels + p, cfg.c_stages)
            wait(s.c_full[stage], phase)
            for part in range(cfg.paced):
                store_async(g.slots, ((g.rank * g.per + number) * cfg.paced + part, p), s.c_parts[stage, part], task.peer)
                GemmReduceScatterInside.pace(cfg, g, s, task)
            arrive(s.c_empty[stage])
        store_async_wait(0)                     # written at the owner, not merely read from shared memory
        signal(g.done, number, task.peer)

    @staticmethod
    def storer(cfg, g, s, task):                # one thread
        if task.id < g.others:
            GemmReduceScatterInside.send(cfg, g, s, task)
        else:
            first = GemmReduceScatterInside.fetched(cfg, g, task)
            GemmReduceScatterInside.vacate(cfg, s, first)
            for step in range(first, first + cfg.panels * g.sources):
                stage, phase = ring(step, cfg.c_stages)
                wait(s.sum_full[stage], phase)
                if mod(step + 1, g.sources) == 0:
                    store_async(g.out, (task.row, task.col * cfg.panels + GemmReduceScatterInside.panel(cfg, g, step)), s.c[stage])
                    store_async_read_wait(0)
                arrive(s.sum_empty[stage])

    @staticmethod
    def vacate(cfg, s, first):
        """At a block's first own tile: the others' tiles have left the panels."""
        if first == 0:
            for stage in range(cfg.c_stages):
                arrive(s.sum_empty[stage])

    @staticmethod
    def communicator(cfg, g, s, task):          # one thread: what others have sent for an own tile, panel by panel
        if task.id >= g.others:
            number = GemmReduceScatterInside.number(cfg, g, task)
            first = GemmReduceScatterInside.fetched(cfg, g, task)
            wait_until(g.done, number, g.epoch * g.sources)
            for step in range(first, first + cfg.panels * g.sources):
                stage, phase = ring(step, cfg.c_stages)
                source = mod(step, g.sources)
                place = i32(source + (source >= g.rank)) * g.per + number, GemmReduceScatterInside.panel(cfg, g, step)
                wait(s.sum_empty[stage], phase)
                expect(s.sum_got[stage], s.c[stage])
                load_async(s.c[stage], g.slots, place, s.sum_got[stage])


GemmReduceScatter.inside = GemmReduceScatterInside


class Undefined(GemmReduceScatter):
    """For sums that there are not: every rank is told."""

    class form(Scattered):
        """No result has a shape."""

        @classmethod
        def result(form, m, n, world):
            """Raises ConfigError."""
            raise ConfigError("GemmReduceScatter: sums is neither \"float32\" nor \"any\". It says where sums may be rounded. Pass one.")


def _kernel(A, world, sums, config):
    """The kernel that a call asks for. Two ranks have nothing to gain from adding at the owner: only one sends."""
    if config is not None:
        return GemmReduceScatterAdd if getattr(config, "adds", False) else GemmReduceScatter
    if sums != "any":
        return GemmReduceScatter if sums == "float32" else Undefined
    shape = getattr(A, "shape", ())             # of what is no matrix: the check says so
    adds = getattr(world, "size", 1) > 2 and len(shape) == 2 and hides_adds(shape[1], 2)
    return GemmReduceScatterAdd if adds else GemmReduceScatter


@repeated("A", "B", "out")
def gemm_reduce_scatter(world, A, B, *, sums="float32", out=None, config=None, stream=None):
    """This rank's share of the rows of C = sum over the ranks r of the world of A_r @ B_r; collective.

    ``numpy.array_split(C, world.size)[world.rank]``: whole rows in order, the first M % size ranks one more than the others.

    Args:
        world: World of this rank; every rank calls with arrays of the same shapes and dtype.
        A: (M, K) bfloat16, float16 or float32 (as in ``gemm``), rows contiguous. B: (K, N), row-major or the transpose of a row-major
            (N, K), which it must be of float32.
        sums: "float32": made in float32 in rank order, and rounded once. "any": also, where more than one rank sends and K hides it
            (K >= s R / (2 B): bytes of an element, FLOP/s, bytes per second of a link), added at the owner by the copy engine, rounded
            each time and in any order.
        out: (rows of this rank, N) of the same dtype, any memory of this rank, rows contiguous; made with A's library if None.
        config: GemmReduceScatterConfig; chosen by shape if None, with ``intra_sm``: no SM only communicates; else it alone says how sums
            are made (``adds``). stream: as in ``gemm``; to be passed where two streams work at once, since calls of one shape share
            counters.

    Returns: this rank's rows of C. To this rank's product the others', each rounded once to the dtype, are added in float32 in rank
    order, and the sum is rounded once; without ``intra_sm`` this rank's is rounded too. The world keeps symmetric memory of about M * N
    elements on each rank for this shape. With ``config.adds`` the sum is rounded at each of its world.size additions, in any order, in
    M * N / world.size elements of symmetric memory.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError on every rank, before anything is launched;
    HangError if a rank does not come.
    """
    return multiply(_kernel(A, world, sums, config), world, A, B, out, config, stream)
