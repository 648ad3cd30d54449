"""Kernels that are wrong on purpose, one for each tool of compute-sanitizer: a tool that says nothing about them sees nothing.

``scripts/sanitize.py`` runs them first.
"""

from pknumba.lowering import Int, primitive
from pknumba.templates.call import Matrix, Workspace, prepare

from ..primitives.tiny import Tiny, TinyComm, TinyConfig
from .litmus import SHAPE, Tile, count_wrong, differences, shared, stamp_tile

__all__ = ["CONTROLS", "play"]


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


class Alone(Beyond):
    """A lane that waits for lanes which do not come (synccheck)."""

    @staticmethod
    def communicator(cfg, g, s, task):
        meet_alone(g.wrong)


class Unwritten(Beyond):
    """Reads what nobody has written (initcheck)."""

    @staticmethod
    def communicator(cfg, g, s, task):
        count_wrong(g.wrong, 0, differences(g.X, 1))


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


#: The tool that must complain -> the kernel.
CONTROLS = {"memcheck": Beyond, "racecheck": Unordered, "synccheck": Alone, "initcheck": Unwritten}


def play(world, kernel):
    """Launch it on memory that nobody has written."""
    cfg, x = TinyConfig(dtype="float32"), world.symmetric(SHAPE, "float32")
    matrix = Matrix(x.pointer, *SHAPE, x.pitch, "float32", x.peers_table, targets=((x.pointer, SHAPE[0]),))
    call = prepare(kernel, world, cfg, {"X": matrix}, {"grid": (1, 1), "tasks": 1, "k_tiles": 1}, Workspace(kernel, world, cfg, 1))
    call.fire(world.stream)
    world.synchronize()
