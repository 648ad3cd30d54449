"""One call of a kernel, prepared for its arrays: on the device everything is packed once, so that firing costs a few microseconds."""

import struct
from collections import namedtuple
from functools import partial

from .. import interpreter as cpu
from ..errors import ConfigError
from ..lowering import CHECK, cache
from ..lowering.variant import debug
from ..tiles import Semaphore, record_type

#: A matrix as a kernel sees it. ``pointer``: device address, or None; ``arrays``: NumPy arrays by rank (interpreter);
#: ``peers``: device address of the table of every rank's address, or 0; ``pitch``: bytes between rows; ``targets``: what the copy
#: engine may move to and from ranks, ((address, rows) or (address, rows, columns) of each), or None; ``outer``: ((extent, bytes apart),
#: ...) of an array of matrices, the nearest dimension first.
Matrix = namedtuple("Matrix", "pointer rows cols pitch dtype peers arrays targets outer", defaults=(None, 0, 0, 0, "", 0, None, None, ()))

#: Slots for tensor maps in the parameter of a tensor, and the bytes of a header and of a map.
_SLOTS, _HEADER = 2, 128


def together(world, launches):
    """What a function (stream) launches, as a graph once it comes often: (function (stream) that launches, {stream: function () ->
    CUresult}, what deals with that result). Not for ranks that are threads: one might wait in the driver for a kernel that waits for
    another's."""
    from ..runtime.graphs import Bundle
    bundle = Bundle(launches, world.device)
    return bundle.run, bundle.ready, bundle.refused


def quick(world, launch):
    """The same of one runtime.Launch, by what the host pays least for: for processes that share a card by MPS a graph of it takes the host
    2.4 us less than the launch, and the device no longer (decision 22)."""
    if world.sharing and not world.stream:
        return together(world, launch.fire)
    return launch.fire, launch.ready, launch.refused


class Steps:
    """What a prepared call does: ``before``, its ``launch`` (None where there is nothing to compute), ``after``.

    Attributes: ``ready``: where there is nothing but a launch, {stream: function () -> CUresult} of those it was prepared for, and
    ``refused``, which deals with a CUresult; as of ``runtime.launch.Launch``.
    """

    ready = {}

    def run(self, stream):
        """What comes before, the kernel, and what comes after, on that stream."""
        for step in self.before:
            step(stream)
        if self.launch is not None:
            self.launch.fire(stream)
        for step in self.after:
            step(stream)

    def shorten(self):
        """The common case, in which nothing comes before or after, is the launch alone, without a loop. Where something does, all of it
        becomes one launch."""
        alone, on_device = not self.before and not self.after, isinstance(self.launch, DeviceCall)
        if alone and on_device:
            self.run, self.ready, self.refused = quick(self.world, self.launch.launch)
        elif alone:
            self.run = self.launch.fire
        elif on_device and not self.world.stream and not debug():
            self.run, self.ready, self.refused = together(self.world, self.run)


class Workspace:
    """What the calls of one kernel on one shape keep between them on a world: counters, epoch, the launch context."""

    def __init__(self, kernel, world, cfg, tasks):
        self.epoch = 0
        if kernel.private:
            from .kept import OwnCounters
            self.counters = {n: OwnCounters(world, tasks) for n in kernel.counters}
        else:
            self.counters = {n: world.counters(f"{kernel.__name__}.{n}", tasks if n in kernel.counters else world.size)
                             for n in kernel.all_counters()}
        self.context = world.context(names=lambda record: describe_hang(kernel, cfg, record)) if world.executor == "gpu" else None


def device_table(world, data):
    """Device address of these bytes, on a 256-byte boundary, uploaded once for each world: they must say all that matters of what
    they point to, since whoever asks for the same bytes gets the same table."""
    import numpy as np
    from ..runtime import DeviceArray
    key = "table", data
    if key not in world.cache:
        world.cache[key] = DeviceArray.of(np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), "uint32"), world.device)
    return world.cache[key].pointer


def _tensor(world, name, m, record):
    """The bytes of a tensor's parameter: header, then the tensor maps of this rank's memory."""
    from ..runtime import tensormap
    header = struct.pack("<QQQIIIIQ", m.pointer, m.peers, m.pitch, m.rows, m.cols, world.size, world.rank, 0)
    for rows, cols, swizzle in record["peer_boxes"].get(name, ()):
        maps = [tensormap.encode(p, (r, *(c or [m.cols])), m.pitch, m.dtype, (rows, cols), swizzle, name, m.outer)
                for p, r, *c in m.targets]
        header += struct.pack("<Q", device_table(world, b"".join(maps)))
    blob = header.ljust(_HEADER, b"\0")
    for rows, cols, swizzle in record["boxes"].get(name, ()):
        blob += tensormap.encode(m.pointer, (m.rows, m.cols), m.pitch, m.dtype, (rows, cols), swizzle, name, m.outer)
    return blob.ljust(_HEADER * (1 + _SLOTS), b"\0")


def every_number(kernel, world, numbers, cfg):
    """The numbers of ``g``: the operator's, then the template's, in the order of the kernel's parameters."""
    return {**numbers, "rank": world.rank, "world_size": world.size, "comm_sms": kernel.comm_sms(cfg)}


def check_sms(kernel, cfg, num_sms):
    """Raise ConfigError if communicators would leave no SM to compute, or no cluster fits. ``num_sms``: of the rank that has fewest."""
    comm = kernel.comm_sms(cfg)
    if comm >= num_sms:
        raise ConfigError(f"{kernel.__name__}: comm_sms = {comm}, but a rank has {num_sms} SMs. At least one must compute. "
                          f"Use comm_sms = {max(1, num_sms // 8)}.", comm_sms=comm, num_sms=num_sms)
    if getattr(cfg, "slices", 1) > 1 and cfg.slices * cfg.cluster > num_sms:
        raise ConfigError(f"{kernel.__name__}: slices = {cfg.slices}, but a rank has {num_sms} SMs for clusters of {cfg.cluster}. The "
                          f"blocks that share a tile run at once. Use slices = {num_sms // cfg.cluster} at most.", slices=cfg.slices,
                          num_sms=num_sms)
    if cfg.cluster > num_sms:
        raise ConfigError(f"{kernel.__name__}: cluster = {cfg.cluster}, but a rank has {num_sms} SM. The blocks of a cluster run at once. "
                          "Use cluster = 1.", cluster=cfg.cluster, num_sms=num_sms)


def _grid(kernel, world, cfg, numbers):
    """(blocks, blocks that communicate). A form whose ranks count each other's blocks says how many compute."""
    comm = kernel.comm_sms(cfg)
    blocks = numbers.get("blocks", min(numbers["tasks"], world.num_sms - comm))
    return blocks // cfg.cluster * cfg.cluster + comm, comm


def compiled(kernel, cfg):
    """(cubin, record) of a kernel: fields that the launch passes as numbers do not matter."""
    frozen = cfg.replace(**{n: 1 for n in cfg.runtime})
    return cache.compiled(kernel, frozen, lambda: kernel.plan(frozen))


def note(kernel, cfg):
    """Write down, if somebody asked (PKNUMBA_RECORD), that a program wants this kernel, though it is interpreted here."""
    cache.bundle.record(kernel, cfg.replace(**{n: 1 for n in getattr(cfg, "runtime", ())}))


def loaded(kernel, world, cfg, shared_bytes):
    """The kernel loaded on this world's device, once."""
    from ..runtime import driver
    key = ("function", kernel, cfg.replace(**{n: 1 for n in cfg.runtime}))
    if key not in world.cache:
        cubin, record = compiled(kernel, cfg)
        world.cache[key] = driver.load(cubin, record["symbol"], shared_bytes, world.device)
    return world.cache[key]


def common_params(kernel, world, numbers, cfg, workspace):
    """What follows the tensors in a kernel's parameters: counters, numbers, the launch context, each (bytes, alignment)."""
    params = []
    for name in kernel.all_counters():
        c = workspace.counters[name]
        params.append((struct.pack("<QQIII", c.pointer, c.peers_table, world.size, world.rank, c.n).ljust(_HEADER, b"\0"), 128))
    for value in every_number(kernel, world, numbers, cfg).values():
        params += [(struct.pack("<i", v), 4) for v in (value if isinstance(value, tuple) else (value,))]
    return [*params, (struct.pack("<Q", workspace.context.pointer), 8)]


def _resident(kernel, cfg, clusters):
    """How many clusters a device holds at once, if that is any."""
    if not clusters:
        raise ConfigError(f"{kernel.__name__}: cluster = {cfg.cluster}, and this device has no room for one. SMs lie in groups that a "
                          "cluster cannot leave, and a rank may have parts of groups. Use a smaller cluster.", cluster=cfg.cluster)
    return clusters


class DeviceCall:
    """A launch with all its arguments packed."""

    def __init__(self, kernel, world, cfg, matrices, numbers, workspace):
        record = compiled(kernel, cfg)[1]
        shared_bytes = kernel.places(cfg)[1] + 1024
        function = loaded(kernel, world, cfg, shared_bytes)
        grid, _ = _grid(kernel, world, cfg, numbers)
        if cfg.cluster > 1:
            grid = min(grid, cfg.cluster * _resident(kernel, cfg, function.clusters(record["threads"], shared_bytes, cfg.cluster)))
            each = cfg.cluster * getattr(cfg, "slices", 1)
            grid = max(each, grid // each * each)
            numbers = {**numbers, **({"blocks": grid} if "blocks" in numbers else {})}
        params = [(_tensor(world, name, matrices[name], record), 128) for name in kernel.tensors]
        params += common_params(kernel, world, numbers, cfg, workspace)
        self.launch = function.launcher(grid, record["threads"], params, shared_bytes=shared_bytes, pdl=not world.sharing,
                                        cluster=cfg.cluster)
        self.fire = self.launch.fire


def describe_hang(kernel, cfg, r):
    """Who waited for what at which source line, or used what that does not fit, from the record that a device wrote."""
    record = compiled(kernel, cfg)[1]
    role = ("?", "loader", "consumer", "storer", "communicator")[r.role if r.role < 5 else 0]
    at = f" at {record['sites'][r.site - 1]}" if 0 < r.site <= len(record["sites"]) else ""
    who = f"{kernel.title or kernel.__name__}: rank {r.rank} block {r.block} {role}{at}"
    if r.kind & 255 == CHECK:
        value = r.seen - (r.seen >> 31 << 32)
        return f"{who}: {record['checks'][r.which]} is {value}; it must be from 0 to {r.expected - 1}"
    who += " waits for"
    if r.kind & 255 == 1:
        ring = [(n, (r.which - at) // 8) for n, (at, count) in record["semaphores"].items() if at <= r.which < at + 8 * count]
        what = f"semaphore {ring[0][0]}[{ring[0][1]}]" if ring else f"a semaphore at {r.which}"
        return f"{who} {what}: expected phase {r.expected} to be complete, seen phase {r.expected ^ 1}"
    counter = record["counters"][r.kind >> 8] if r.kind >> 8 < len(record["counters"]) else "?"
    return f"{who} counter {counter}[{r.which}]: expected {r.expected}, seen {r.seen}"


class InterpretedCall:
    """A launch on the interpreter: the same roles and drivers on NumPy arrays."""

    def __init__(self, kernel, world, cfg, matrices, numbers, workspace, warps=None):
        kernel.check()
        note(kernel, cfg)
        self.kernel, self.world, self.cfg, self.workspace = kernel, world, cfg, workspace
        self.places = kernel.places(cfg)[0]
        self.roles, self.numbers = kernel.roles(cfg), every_number(kernel, world, numbers, cfg)
        self.grid, self.comm = _grid(kernel, world, cfg, numbers)
        self.warps = warps or (self.roles["communicator"].workers if self.comm else 0)
        self.tensors = {n: cpu.Tensor(n, matrices[n].arrays, world.rank) for n in kernel.tensors}
        whole = [world.session.rank_of(r) for r in range(world.size)]
        self.counters = {n: cpu.Counters(n, c.arrays, world.rank, whole) for n, c in workspace.counters.items()}

    def fire(self, stream=0):
        """Run the kernel; returns when this rank's part has ended."""
        kernel, cfg = self.kernel, self.cfg
        self.workspace.epoch += 1
        fields = {**self.tensors, **self.counters, **self.numbers, "epoch": self.workspace.epoch}
        g = cpu.globals_of(fields)
        launch = self.world.session.launch(self.world.rank, kernel.__name__, self.grid, self.world.num_sms, cfg.cluster)
        drive = {n: kernel.driver(r)(kernel.played(n), kernel.steps) for n, r in self.roles.items()}
        sms, first = self.grid - self.comm, self.comm * kernel.movers_first
        for place in range(self.grid):                                  # blocks that communicate come first or last
            block, number = launch.block(place), place - first
            if not 0 <= number < sms:
                self._communicate(launch, block, drive["communicator"], g, place if first else number - sms)
                continue
            s = self._shared(block)
            for role in (r for r in self.roles.values() if r.beside or r.name != "communicator"):
                each = role.workers if role.beside else 1           # communicators beside others count workers, others blocks
                for part in range(role.workers):
                    play = partial(drive[role.name], cfg, g, s, part, number * each + (part if role.beside else 0), sms * each)
                    launch.role(block, role, part, play)
        launch.wait()

    def _communicate(self, launch, block, drive, g, number):
        role, workers, s = self.roles["communicator"], self.comm * self.warps, self._shared(block)
        for warp in range(self.warps):
            launch.role(block, role, warp, lambda w=warp: drive(self.cfg, g, s, w, number * self.warps + w, workers))

    def _shared(self, block):
        made = {}
        for name, (offset, decl) in self.places.items():
            if isinstance(decl, Semaphore):
                made[name] = block.semaphore(name, decl, decl.arrivals(self.roles[decl.by]))
            else:
                made[name] = block.tile(name, offset, decl)
        return record_type("Shared", *made)(**made)


def prepare(kernel, world, cfg, matrices, numbers, workspace):
    """The call on this world's executor; ``.fire(stream)`` runs it."""
    return (DeviceCall if world.executor == "gpu" else InterpretedCall)(kernel, world, cfg, matrices, numbers, workspace)
