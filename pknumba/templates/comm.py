"""Comm: kernels that only communicate. All blocks are alike, every warp is a communicator.

Block b of a rank works on the same pieces as block b of every other rank, and meets only that one. So blocks need not be
resident together: the lowest unfinished block of every rank runs, and can end.
"""

from ..config import CommConfig
from ..errors import ConfigError
from ..primitives import announce, await_all, copy_box, div, i32, mod, sync, tick, times
from ..primitives.units import UNIT
from ..tiles import ITEMSIZE, Role, Task, shared
from .agreement import links, parted, sure_sms
from .base import Template
from .geometry import Box, contiguous

#: Warps of a small block, of which several are on an SM: where ranks share a card and have much to move.
SMALL = 4
#: Small blocks of each SM, four times as many as it has room for: the last ones that run are then a small part of all.
_SHORT = 16


def sent_at_once(world):
    """Bytes that one rank sends at most in packets, all peers together: beyond it two trips of half as many take less time."""
    return (4 << 20) if links(world) else 512 * 1024


class Comm(Template):
    """A kernel declares ``communicator`` (a warp), which moves one piece of what ranks have for each other from ``g.S`` to ``g.Y``.

    Tensors: X is this rank's input; S is symmetric: the input itself, or a copy that the template makes (``cfg.copy_in``); Y is
    this rank's output. A task has ``id`` = number of a piece, ``step`` = how many calls there were, this one included.
    """

    config = CommConfig
    tensors, symmetric, counters = ("X", "S", "Y"), ("S",), ("ready", "done")
    numbers = {"box": 5, "pieces": 1, "slots": 1, "root": 1}

    #: Name of the public function; whether its input may be its output; whether only some ranks have an output; how many units a lane
    #: can move at once.
    operator, in_place, rooted, most = "", False, False, 8
    #: Whether a lane reads what several ranks have, and combines it.
    combines = False
    #: Whether ranks reach into each other's memory when they copy out, and meet once more after it.
    again = False
    #: Whether ranks meet before they communicate. Not where what they then write to has been read before the last meeting of any call.
    meets = True
    #: The kernel for little data, or None.
    small = None
    #: The kernel in which ranks write to each other (``algorithm="push"``), or None.
    push = None

    @staticmethod
    def shared(cfg):
        return shared()

    @classmethod
    def roles(kernel, cfg):
        return {"communicator": Role("communicator", "warp", cfg.warps)}

    @classmethod
    def all_counters(kernel):
        """The kernel's counters; each has a number for each source rank and block."""
        return kernel.counters

    @classmethod
    def registers(kernel, cfg):
        """(0, 0): warps are alike."""
        return 0, 0

    @classmethod
    def driver(kernel, role):
        """Both handshakes around the work, and the copies before and after."""
        return lambda communicate, _: exchange(kernel, communicate)

    @staticmethod
    def copy_in(cfg, g, s, task):
        """This rank's input to symmetric memory, that piece of every slot."""
        for slot in range(g.slots):
            copy_box(g.S, g.X, task.id, g.box, cfg.unroll, slot, slot)

    @staticmethod
    def copy_out(cfg, g, s, task):
        """The result from symmetric memory to this rank's output, where the communicator has not put it there."""

    @staticmethod
    def finish(cfg, g, s, task):
        """The same for kernels that meet again, after that (``cfg.copy_out``)."""

    # ---- what the host asks (``transfers.CommCall``)
    @classmethod
    def form(kernel, size, shape, **arguments):
        """The geometry.Form for an input of that shape. Raises ShapeError or WorldError for arguments that do not fit."""
        raise NotImplementedError

    @classmethod
    def form_on(kernel, rank, size, shape, **arguments):
        """The same for a rank, where ranks have different shapes."""
        return kernel.form(size, shape, **arguments)

    @classmethod
    def common(kernel, shape, **arguments):
        """What of the shape of x ranks must agree on."""
        return shape

    @classmethod
    def others(kernel, world, x, y, given):
        """The ArrayInfos of further arrays of this rank. x, y: of input and output. given: what was passed. Raises if it does not fit."""
        return ()

    @classmethod
    def box(kernel, call, found):
        """The geometry.Box of a call. found: collected.Arguments."""
        y = found.out.strides if found.out else contiguous(found.form.out, ITEMSIZE[call.dtype])
        return Box(kernel.operator, found.form, call.dtype, found.x.strides, y)

    @classmethod
    def receives(kernel, rank, **arguments):
        """Whether that rank has a result."""
        return True

    @classmethod
    def stand_in(kernel, size, rank, shape, **arguments):
        """Shape of an input that is None on that rank, whose out has this shape; None where it must be given."""

    @classmethod
    def work(kernel, call):
        """Units that the warps of a rank share."""
        return call.box.numbers[-1]

    @classmethod
    def variant(kernel, call, cfg):
        """(kernel, configuration) for a call: how much a lane moves at once, and whether in packets, depends on how much there is."""
        few = call.box.numbers[-1] * UNIT * call.world.size <= sent_at_once(call.world)
        if kernel.small and (cfg.algorithm == "one-shot" or few and cfg.algorithm == "auto"):
            return kernel.small, kernel.small.sized(call, cfg)
        if kernel.push and (cfg.algorithm == "push" or cfg.algorithm == "auto" and kernel.push.suits(call)):
            kernel = kernel.push
            kernel.prepare(call)
        if call.given is None:
            cfg = kernel.fitted(call, cfg, kernel.work(call) >= 32 * kernel.most * cfg.warps * call.least_sms())
        if cfg.unroll > kernel.most:
            raise ConfigError(f"{kernel.operator}: unroll = {cfg.unroll}. A lane has registers for {kernel.most} units. Use that or less.")
        return kernel, cfg

    @classmethod
    def fitted(kernel, call, cfg, many):
        """The configuration with as many warps, and units of a lane, as suit a call that moves much or little."""
        small, unroll = many and not links(call.world), kernel.most if many else kernel.most // 4
        if small and kernel.combines and call.world.size > 4:
            unroll = kernel.most // 2
        return cfg.replace(unroll=unroll, warps=SMALL if small else cfg.warps, at_once=kernel.on_the_way(call, unroll))

    @classmethod
    def on_the_way(kernel, call, unroll):
        """Units that a lane has on the way where it combines: of every rank, eight at most."""
        return min(8, unroll << (call.world.size - 1).bit_length()) if kernel.combines else kernel.config().at_once

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """{field of the configuration: whether the template makes that copy}."""
        return dict(copy_in=not x_symmetric, copy_out=False)

    @classmethod
    def values(kernel, call):
        """``numbers`` of a call."""
        pieces = -(-call.box.numbers[-1] // (32 * call.cfg.unroll))
        return dict(box=call.box.numbers, pieces=pieces, slots=call.form.slots, root=call.arguments.get("root", 0))

    @classmethod
    def blocks(kernel, call, numbers):
        """How many blocks, where the configuration leaves it open; the same on every rank. Where MPS says how many SMs each of several
        ranks on a card has, and warps have pieces enough, more than are resident: it matters little then how many SMs a rank has at the
        moment. Where nothing says so, blocks of a rank that came first would take all of the card, and wait there for the other's."""
        warps, many = call.cfg.warps, call.least_sms() * _SHORT
        if warps <= SMALL and parted(call.world) and numbers["pieces"] >= 4 * warps * many:
            return many
        return min(-(-numbers["pieces"] // warps), kernel.most_blocks(call))

    @classmethod
    def most_blocks(kernel, call):
        """As many as are resident at once, or a few less: a block that must wait until another ends makes a call last twice as long.
        A lane has 128 registers at most, so an SM has room for four small blocks."""
        return call.least_sms() if call.cfg.warps > SMALL else max(1, sure_sms(call.world) * 16 // call.cfg.warps * 7 // 8)

    @classmethod
    def count(kernel, counter, size, blocks, pieces):
        """How many numbers a counter has."""
        return size * blocks

    @classmethod
    def views(kernel, call, x, out, y):
        """{tensor: geometry.View} of a call. y: ArrayInfo of out, or None."""
        s = call.staging() if call.cfg.copy_in else call.shared(x, call.box.x)
        return dict(X=call.private(call.x, call.box.x), S=s, Y=call.private(y, call.box.y))


class Packets(Comm):
    """A kernel of little data, which every rank sends in packets to whoever reads them: its communicator needs no handshake, and peers
    touch nothing but its ``inbox``."""

    counters = ("calls", "arrived")

    @classmethod
    def sized(kernel, call, cfg):
        """The configuration with as few warps in a block as there are SMs for: those of one SM are in each other's way."""
        if call.given is not None:
            return cfg
        needed = kernel.values(call)["pieces"] / call.least_sms()
        return cfg.replace(warps=next((warps for warps in (1, 2, 4, 8) if warps >= needed), cfg.warps))

    @classmethod
    def driver(kernel, role):
        """No handshake."""
        return lambda communicate, _: counted(kernel, communicate)

    @staticmethod
    def send(cfg, g, s, task):
        """What this rank has for the others of a piece, to their inboxes."""

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """Nothing is read or written by peers but the inbox."""
        return {}

    @classmethod
    def count(kernel, counter, size, blocks, pieces):
        """Calls of each block; flags of each source and piece."""
        return blocks if counter == "calls" else size * pieces


def exchange(kernel, communicate):
    """Copy in; ready; communicate; done; copy out.

    ``ready``: a rank has come to this call, so what it shares may be read and what it receives may be written. ``done``: it
    has read and written all it will, so what it read may be overwritten, by the next call or by whoever owns it. A kernel that
    reaches into peers' memory when it copies out says ``done`` twice: before that, and after it; then it may copy once more.
    """
    again, meets = kernel.again, kernel.meets

    def drive(cfg, g, s, part, place, places):
        block, blocks = div(place, cfg.warps), div(places, cfg.warps)
        first, mine = mod(place, cfg.warps) == 0, i32(g.rank * blocks + block)
        epoch = i32(times(g.ready, mine) + 1)
        if cfg.copy_in:
            for i in range(place, g.pieces, places):
                kernel.copy_in(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, epoch))
        if meets:
            sync(s)
            if first:
                announce(g.ready, mine)
                await_all(g.ready, block, blocks, epoch)
            sync(s)
        for i in range(place, g.pieces, places):
            communicate(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, epoch))
        sync(s)
        if first:
            if not meets:
                tick(g.ready, mine)
            announce(g.done, mine)
            await_all(g.done, block, blocks, i32(2 * epoch - 1) if again else epoch)
        if cfg.copy_out or again:
            sync(s)
            for i in range(place, g.pieces, places):
                kernel.copy_out(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, epoch))
        if again:
            sync(s)
            if first:
                announce(g.done, mine)
                await_all(g.done, block, blocks, i32(2 * epoch))
            if cfg.copy_out:
                sync(s)
                for i in range(place, g.pieces, places):
                    kernel.finish(cfg, g, s, Task(i32(i), i32(0), i32(0), g.rank, epoch))
    return drive


def counted(kernel, communicate):
    """Send all; communicate; count the call: for kernels whose data say themselves that they have come."""
    def drive(cfg, g, s, part, place, places):
        block = div(place, cfg.warps)
        call, turns = i32(times(g.calls, block) + 1), div(i32(g.pieces + places - 1 - place), places)
        for turn in range(turns):
            kernel.send(cfg, g, s, Task(i32(place + turn * places), i32(0), i32(0), g.rank, call))
        for turn in range(turns):
            communicate(cfg, g, s, Task(i32(place + turn * places), i32(0), i32(0), g.rank, call))
        sync(s)
        if mod(place, cfg.warps) == 0:
            tick(g.calls, block)
    return drive
