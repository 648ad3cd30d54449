"""Kernels that show what each tool of compute-sanitizer sees, and what it does not: ``scripts/sanitize.py`` runs them first.

``CONTROLS`` are wrong, and the tool must say so, or its silence about others means nothing. ``LIMITS`` are wrong and the tool is
silent, or right and the tool complains: what ``docs/checking.md`` says of its limits is seen in every run.
"""

from pknumba.lowering import Int, primitive
from pknumba.primitives import arrive, expect, fence_async, i32, load_async, signal, store_async, store_async_wait, wait, wait_until
from pknumba.templates.call import Matrix, Workspace, prepare
from pknumba.tiles import Semaphore

from ..primitives.tiny import Tiny, TinyComm, TinyConfig
from .litmus import SHAPE, Tile, count_wrong, differences, shared, stamp_tile

__all__ = ["CONTROLS", "LIMITS", "play"]


@primitive(scope="warp")
def write_beyond(counters):
    """Add to a word 64 MiB behind the counters. PTX: red.relaxed.gpu.global.add.u32."""


@write_beyond.lowering
def _(counters):
    return lambda p, at: p("red.relaxed.gpu.global.add.u32 [$0+67108864], 1;", p.parameter(p.i64, at, 0))


@primitive(scope="warp")
def meet_alone(counters):
    """One lane waits for all lanes of its warp in a branch of its own. PTX: bar.warp.sync."""


@meet_alone.lowering
def _(counters):
    def emit(p, at):
        with p.leader("warp"):
            p("bar.warp.sync 0xffffffff;")
    return emit


@primitive(scope="warp")
def arrive_anywhere(counters):
    """An arrival on a semaphore that nobody has initialised. PTX: mbarrier.arrive."""


@arrive_anywhere.lowering
def _(counters):
    return lambda p, at: p("{ .reg .b64 t; mbarrier.arrive.shared::cta.b64 t, [$0+4096]; }", p.shared_base())


@primitive(scope="thread")
def peek(tile):
    """The first word of a shared tile. PTX: ld.shared.u32."""
    return 0


@peek.lowering
def _(tile):
    return Int, lambda p, at: p("ld.shared.u32 $0, [$1];", at, out=[p.i32])


@primitive(scope="thread")
def keep(counters, n):
    """Add n to this rank's first counter. PTX: red.relaxed.gpu.global.add.u32."""


@keep.lowering
def _(counters, n):
    return lambda p, at, n: p("red.relaxed.gpu.global.add.u32 [$0], $1;", p.parameter(p.i64, at, 0), n)


class Beyond(TinyComm):
    """Writes beside its memory (memcheck)."""

    tensors, symmetric, kinds, counters = ("X",), ("X",), {"X": "float32"}, ("wrong",)

    @staticmethod
    def communicator(cfg, g, s, task):
        write_beyond(g.wrong)


class Clipped(Beyond):
    """Stores a tile wholly outside of its matrix (memcheck is silent: the copy engine drops it)."""

    @staticmethod
    def shared(cfg):
        return shared(mine=Tile(SHAPE, "float32", 128), full=Semaphore(1, by="consumer"))

    @staticmethod
    def consumer(cfg, g, s, task):
        stamp_tile(s.mine, task.id)
        fence_async(s.mine)
        arrive(s.full[0])

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.full[0], 0)
        store_async(g.X, (7, 0), s.mine, g.rank)
        store_async_wait(0)

    @staticmethod
    def communicator(cfg, g, s, task):
        pass


class Alone(Beyond):
    """A lane that waits for lanes which do not come (synccheck is silent)."""

    @staticmethod
    def communicator(cfg, g, s, task):
        meet_alone(g.wrong)


class Uninitialised(Beyond):
    """Arrives on a semaphore that nobody has initialised (synccheck)."""

    @staticmethod
    def communicator(cfg, g, s, task):
        arrive_anywhere(g.wrong)


class Unwritten(Beyond):
    """Reads what nobody has written (initcheck)."""

    @staticmethod
    def communicator(cfg, g, s, task):
        count_wrong(g.wrong, 0, differences(g.X, 1))


class Copied(Clipped):
    """Right: the copy engine writes what ordinary loads then read (initcheck complains: it does not see the copy)."""

    counters = ("wrong", "sent")

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.full[0], 0)
        store_async(g.X, (0, 0), s.mine, g.rank)
        store_async_wait(0)
        signal(g.sent, 0, g.rank)

    @staticmethod
    def communicator(cfg, g, s, task):
        wait_until(g.sent, 0, 1)
        count_wrong(g.wrong, 0, differences(g.X, i32(0)))


class Unordered(Tiny):
    """Reads a shared tile while another role writes it (racecheck)."""

    tensors, symmetric, kinds, counters = ("X",), ("X",), {"X": "float32"}, ("wrong",)

    @staticmethod
    def shared(cfg):
        return shared(mine=Tile(SHAPE, "float32", 128))

    @staticmethod
    def consumer(cfg, g, s, task):
        stamp_tile(s.mine, task.id)

    @staticmethod
    def storer(cfg, g, s, task):
        keep(g.wrong, peek(s.mine))


class Early(Unordered):
    """Reads a shared tile while the copy engine fills it (racecheck is silent: it does not see the copy)."""

    @staticmethod
    def shared(cfg):
        return shared(mine=Tile(SHAPE, "float32", 128), full=Semaphore(1, by="loader"))

    @staticmethod
    def loader(cfg, g, s, task):
        expect(s.full[0], s.mine)
        load_async(s.mine, g.X, (0, 0), s.full[0])
        wait(s.full[0], 0)

    @staticmethod
    def consumer(cfg, g, s, task):
        pass


#: The tool that must complain -> the kernel. Poison is no kernel's: ``scripts/sanitize.py`` reads memory that nobody wrote.
CONTROLS = {"memcheck": Beyond, "racecheck": Unordered, "synccheck": Uninitialised, "initcheck": Unwritten}
#: The tool that is silent about a wrong kernel, or complains of a right one -> the kernel.
LIMITS = {"memcheck": Clipped, "racecheck": Early, "synccheck": Alone, "initcheck": Copied}


def play(world, kernel):
    """Launch it on memory that nobody has written. Returns what it counted."""
    cfg, x = TinyConfig(dtype="float32"), world.symmetric(SHAPE, "float32")
    matrix = Matrix(x.pointer, *SHAPE, x.pitch, "float32", x.peers_table, targets=((x.pointer, SHAPE[0]),))
    workspace = Workspace(kernel, world, cfg, 1)
    call = prepare(kernel, world, cfg, {"X": matrix}, {"grid": (1, 1), "tasks": 1, "k_tiles": 1}, workspace)
    call.fire(world.stream)
    world.synchronize()
    return int(workspace.counters["wrong"].values()[0])
