"""Calls of kernels that only communicate: checked, agreed among the ranks, packed once, and remembered."""

import struct
from collections import namedtuple
from functools import partial

from .. import interpreter as cpu
from ..lowering.variant import debug
from ..primitives.packets import PIECE, PIECE_BYTES
from ..primitives.units import UNIT
from ..tiles import ITEMSIZE, record_type
from . import call as launches
from .agreement import agreed, least_sms
from .arguments import check_world
from .collected import check
from .fast import found, is_symmetric, places, stream_source
from .geometry import View, alignment
from .repeated import NEWEST

_TENSOR = 384

#: What the calls of one kernel share on a stream: counters by name, the launch context, and what else the kernel keeps.
Workspace = namedtuple("Workspace", "counters context kept")


def communicate(kernel, world, x, out, config, stream, others=(), **arguments):
    """The collective ``kernel`` of every rank's x, in ``out`` or a new array. Arguments, result and errors are those of the public
    operators; ``arguments`` are what only this one has, equal on every rank; ``others`` are further arrays of this rank.
    """
    try:                                         # ``found`` in short, for what is called again and again
        key = kernel, config, stream, tuple(arguments.values()), places[type(x)](x), places[type(out)](out)
        call = world.cache[(*key, *[places[type(other)](other) for other in others]) if others else key]
        known = call.same(x, out, *others) if others else call.same(x, out)
    except (AttributeError, KeyError, TypeError):
        known = False
    if known:
        if world.alarm.value:
            world.check()
    elif getattr(world, "spans", False):
        from .. import nodes
        return nodes.communicate(kernel, world, x, out, config, stream, arguments)
    else:
        call = found(world, (kernel, config, stream, tuple(arguments.values())), (x, out, *others),
                     partial(CommCall, kernel, world, x, out, config, stream, arguments, others))
    world.cache[NEWEST] = call
    launch = call.ready.get(call.stream())
    if launch is None:
        return call.run(x, out)
    if code := launch():
        call.refused(launch, code)
    return out.local if call.out_symmetric else out


class CommCall:
    """A collective of these arrays. ``ready``, ``refused``: as of ``call.Steps``."""

    ready = {}

    def __init__(self, kernel, world, x, out, config, stream, arguments, others=()):
        self.name, self.world = kernel.operator, world
        check_world(self.name, world)
        self.arguments, self.given, self.stream_given = arguments, config, stream
        found = self._agreed(kernel, lambda: check(kernel, world, x, out, config, stream, arguments, others))
        self.x, self.form, self.dtype = found.x, found.form, found.x.dtype
        self.x_symmetric, self.out_symmetric = is_symmetric(x), is_symmetric(out)
        self.others = list(zip(others, found.others))
        self.receives = kernel.receives(world.rank, **arguments)
        self.stream = stream_source(world, stream, out if x is None else x)
        self.in_place = found.out is not None and found.out.pointer == found.x.pointer
        self.launch = None
        self.debug = world.executor == "gpu" and debug()
        if 0 in found.form.dims:
            return
        self.box = kernel.box(self, found)
        self.kernel, cfg = kernel.variant(self, config or kernel.config())
        fixed = dict(dtype=self.dtype, algorithm="multimem" if cfg.multicast else "auto", op=arguments.get("op", "sum"))
        self.cfg = cfg.replace(**fixed, **self.kernel.copies(is_symmetric(x), is_symmetric(out), *map(is_symmetric, others)))
        self.cfg.check()
        self._prepare(x, out, found.out)
        self.fire = self.launch.fire
        self.x = self.others = None              # a remembered call keeps no array alive
        if world.executor == "gpu" and not self.debug and self.receives and out is not None and not self.launch.results:
            fire, self.ready, self.refused = launches.quick(world, self.launch.launch)
            self.fire = lambda stream, result: fire(stream)

    def run(self, x, out):
        """Launch; the result, or None on a rank that gets none."""
        result = out
        if out is None and self.receives:
            result = self._new(x)
        if self.launch is not None:
            if self.debug:
                from .debug import looked_at
                looked_at(self, self.stream(), result)
            else:
                self.fire(self.stream(), result)
        if not self.receives:
            return None
        return result.local if self.out_symmetric else result

    @property
    def form_bytes(self):
        """Bytes of a box."""
        return self.box.elements * ITEMSIZE[self.dtype]

    def _new(self, x):
        if type(x).__module__ == "torch":
            return x.new_empty(self.form.out)
        from ..runtime import arrays
        return arrays.empty_like_library(x.local if is_symmetric(x) else x, self.form.out, self.dtype)

    def _prepare(self, x, out, y):
        """Pack the launch. What is made for the first call of its kind is made by all ranks together."""
        kernel, cfg, world = self.kernel, self.cfg, self.world
        numbers = kernel.values(self)
        blocks = cfg.blocks or max(1, kernel.blocks(self, numbers))
        self.cfg = cfg = cfg.replace(blocks=blocks)
        self.stream_key = self.stream_given if self.stream_given is None else self.stream()
        counts = {n: kernel.count(n, world.size, blocks, numbers["pieces"] * numbers.get("rows", 1)) for n in kernel.all_counters()}
        key = "communicators", kernel, tuple(counts.items()), cfg, self.stream_key
        self.workspace, first = workspace(world, key, self.name, kernel, cfg, counts)
        self.launch = prepare(kernel, world, cfg, kernel.views(self, x, out, y), numbers, self.workspace)
        if first and world.size > 1:
            world.barrier()                      # compiling and loading may take seconds, and loading may wait for kernels that spin

    # ---- arrays as kernels see them
    def inbox(self, rows=1):
        """Two halves of packets, each with a slot for the pieces of a box, or of as many rows, from every rank; zeros at first."""
        world, kept, pieces = self.world, self.workspace.kept, 2 * self.world.size * rows * -(-self.box.numbers[-1] // PIECE)
        if pieces not in kept:
            if world.executor == "gpu":
                kept[pieces] = world.counters(f"{self.name}.inbox", pieces * PIECE_BYTES // 4)
            else:
                kept[pieces] = world.symmetric((pieces * PIECE * UNIT // ITEMSIZE[self.dtype],), self.dtype)
        return self.shared(kept[pieces], ((0, 0, 0), 0))

    def private(self, info, layout):
        """This rank's array; None: the result, which each call brings."""
        if info is None:
            return View(strides=layout[0], step=layout[1])
        if self.world.executor == "interpreter":
            return View(arrays=self._own(info.owner), strides=layout[0], step=layout[1])
        return View(info.pointer, strides=layout[0], step=layout[1])

    def _own(self, array):
        return [array if r == self.world.rank else None for r in range(self.world.size)]

    def shared(self, array, layout):
        """A symmetric array."""
        if self.world.executor == "interpreter":
            return View(arrays=array.arrays, strides=layout[0], step=layout[1])
        return View(array.pointer, None, array.peers_table, *layout)

    def table(self, integers):
        """32-bit integers that never change."""
        import numpy as np
        data = np.array(integers, np.int32)
        if self.world.executor == "interpreter":
            return View(arrays=self._own(data))
        return View(launches.device_table(self.world, data.tobytes()))

    def staging(self, use=""):
        """Symmetric memory for the packed boxes, which calls on this stream use one after the other. use: a name where one call needs
        two."""
        count = 1 << (max(self.box.packed_bytes, 4096) // ITEMSIZE[self.dtype] - 1).bit_length()
        key = "staging", use, count, self.dtype, self.stream_key
        if key not in self.world.cache:
            self.world.cache[key] = self.world.symmetric((count,), self.dtype)
        return self.shared(self.world.cache[key], self.box.packed)

    def least_sms(self):
        """SMs of the rank that has fewest: every rank must choose the same blocks."""
        return least_sms(self.world)

    # ---- agreement
    def _agreed(self, kernel, checked):
        """What checked() gives, once the ranks agree."""
        if self.world.size == 1:
            return checked()
        return agreed(self.world, self.name, kernel, checked, lambda found: {
            **found.terms, "config": repr(self.given), **{k: repr(v) for k, v in self.arguments.items()}})


def workspace(world, key, name, kernel, cfg, counts):
    """(Workspace of the calls that have this key, whether this one has made it); collective where it has. counts: {counter: how many}."""
    first = key not in world.cache
    if first:
        made = {n: world.counters(f"{name}.{n}", count) for n, count in counts.items()}
        context = world.context(names=lambda record: launches.describe_hang(kernel, cfg, record)) if world.executor == "gpu" else None
        world.cache[key] = Workspace(made, context, {})
    return world.cache[key], first


def prepare(kernel, world, cfg, views, numbers, workspace):
    """A launch on the world's executor; on a device its kernel is loaded when this returns."""
    return (DeviceComm if world.executor == "gpu" else InterpretedComm)(kernel, world, cfg, views, numbers, workspace)


class DeviceComm:
    """A launch with all its arguments packed; the result's address alone may change from call to call."""

    def __init__(self, kernel, world, cfg, views, numbers, workspace):
        record = launches.compiled(kernel, cfg)[1]
        shared_bytes = kernel.places(cfg)[1] + 1024
        function = launches.loaded(kernel, world, cfg, shared_bytes)
        self.views, self.world, self.size, self.brought = views, world, world.size, None
        params = [(self._tensor(views[n]), 128) for n in kernel.tensors] + launches.common_params(kernel, world, numbers, cfg, workspace)
        self.launch = function.launcher(cfg.blocks, record["threads"], params, shared_bytes=shared_bytes, pdl=not world.sharing)
        self.results = [(i, n) for i, n in enumerate(kernel.tensors) if views[n].pointer is None]

    def _tensor(self, view):
        if view.pointer is None:
            view = view._replace(pointer=0)
        head = struct.pack("<QQQIIIIQ", view.pointer, view.peers, 0, 0, 0, self.size, self.world.rank, 0).ljust(64, b"\0")
        return (head + struct.pack("<qqqqI", *view.strides, view.step, alignment(view))).ljust(_TENSOR, b"\0")

    def fire(self, stream, result):
        """Launch on that stream."""
        if self.results and result is not None:
            from ..runtime import arrays
            pointer = arrays.describe(result, "out").pointer
            if pointer != self.brought:
                for i, name in self.results:
                    self.launch.update(i, self._tensor(self.views[name]._replace(pointer=pointer)))
                self.brought = pointer
        self.launch.fire(stream)


class InterpretedComm:
    """A launch on the interpreter: the same roles and driver on NumPy arrays."""

    def __init__(self, kernel, world, cfg, views, numbers, workspace):
        kernel.check()
        launches.note(kernel, cfg)
        self.kernel, self.world, self.cfg, self.views = kernel, world, cfg, views
        self.numbers = launches.every_number(kernel, world, numbers, cfg)
        whole = [world.session.rank_of(r) for r in range(world.size)]
        self.counters = {n: cpu.Counters(n, c.arrays, world.rank, whole) for n, c in workspace.counters.items()}

    def fire(self, stream, result):
        """Run the kernel; returns when this rank's part has ended."""
        kernel, cfg, rank = self.kernel, self.cfg, self.world.rank
        own = [result if r == rank else None for r in range(self.world.size)]
        tensors = {n: cpu.Strided(n, own if v.arrays is None else v.arrays, rank, v.strides, v.step)
                   for n, v in self.views.items() if v.arrays is not None or result is not None}
        fields = {**dict.fromkeys(kernel.tensors), **tensors, **self.counters, **self.numbers, "epoch": 0}
        g = record_type("Globals", *fields)(**fields)
        role = kernel.roles(cfg)["communicator"]
        drive = kernel.driver(role)(kernel.communicator, kernel.steps)
        launch = self.world.session.launch(rank, kernel.__name__, cfg.blocks, self.world.num_sms)
        places = kernel.places(cfg)[0]
        for b in range(cfg.blocks):
            block = launch.block(b)
            s = record_type("Shared", *places)(**{n: block.tile(n, at, decl) for n, (at, decl) in places.items()})
            for w in range(cfg.warps):
                launch.role(block, role, w, lambda w=b * cfg.warps + w, s=s: drive(cfg, g, s, 0, w, cfg.blocks * cfg.warps))
        launch.wait()
