"""What calls of kernels of experts have in common: tables of a shape, and how they are packed."""

import itertools
from dataclasses import fields as fields_of
from math import prod

from .. import config as configs
from .agreement import least_sms
from .arguments import check_world
from .call import Matrix, Workspace, check_sms, prepare
from .fast import is_symmetric
from .forms import share
from .geometry import View
from .group_calls import GroupedCall, numbers_of

#: Entries of a router's table that a warp reads for an expert, where there are warps enough.
STRETCH = 512
_calls = itertools.count(1)


class Routes:
    """Where the tokens of a ``moe_dispatch_gemm`` went, and how they come back.

    Attributes:
        ends: (experts of this rank,) int32 on the device: the row at which each one's rows end.
        place: (T, k) int32 on the device: row of each slot on its expert's rank, -1 if it was dropped.
    """

    def __init__(self, tables, tokens, top_k):
        self.tables, self.shape, self.number = tables, (tokens, top_k), next(_calls)
        self.ends, self.place = tables.view(tables.ends, (tables.mine,)), tables.view(tables.place, self.shape)
        tables.latest = self.number


class Tables:
    """What dispatch and combine of one shape share on a world: where tokens go, as int32 in memory of this rank or of all."""

    def __init__(self, world, slots, experts, capacity):
        self.world, self.slots, self.experts, self.capacity, self.latest = world, slots, experts, capacity, 0
        self.mine = share(experts, world.size, world.rank)[1]
        self.stretches = max(1, min(-(-slots // STRETCH), 32, least_sms(world) * 16 // (experts + 1)))      # a lane of a warp adds each up
        self.starts = world.symmetric((world.size * (experts + 1) * self.stretches,), "int32")
        self.source = world.symmetric((max(capacity, 1),), "int32")
        self.place, self.ends = (self._private(n) for n in (slots, self.mine))

    def _private(self, n):
        if self.world.executor == "interpreter":
            import numpy as np
            return np.full(n, -99, np.int32)
        from ..runtime import DeviceArray
        return DeviceArray.empty((max(n, 1),), "int32", self.world.device)

    def view(self, array, shape):
        """The first elements of a table of this rank, in that shape."""
        if self.world.executor == "interpreter":
            return array[:prod(shape)].reshape(shape)
        from ..runtime import DeviceArray
        return DeviceArray(array.pointer, shape, "int32", self.world.device, owner=array)

    def shared(self, array):
        """A symmetric table as a Comm kernel sees it."""
        if self.world.executor == "interpreter":
            return View(arrays=array.arrays)
        return View(array.pointer, None, array.peers_table)

    def private(self, array):
        """A table of this rank as a Comm kernel sees it."""
        if self.world.executor == "interpreter":
            return View(arrays=[array if r == self.world.rank else None for r in range(self.world.size)])
        return View(array.pointer)

    def row(self, array):
        """A table as a kernel of tiles sees it."""
        local = array.local if is_symmetric(array) else array
        if self.world.executor == "interpreter":
            return Matrix(arrays=[local if r == self.world.rank else None for r in range(self.world.size)])
        return Matrix(array.pointer, 1, array.shape[0], 4 * array.shape[0], "int32")


class ExpertCall(GroupedCall):
    """What dispatch and combine have in common. On one rank nothing travels: all SMs bring rows to their places before, or sum them
    afterwards, and the product is that of the kernel's ``alone``.
    """

    #: Whether results are carried to other ranks, or inputs from all.
    returns = False

    def _start(self, kernel, world):
        self.name, self.world = kernel.title or kernel.__name__, world
        check_world(self.name, world)
        self.alone = world.size == 1
        self.kernel = kernel.alone if self.alone else kernel
        self.before, self.after, self.scratch, self.launches = [], [], [], []

    def run(self, stream):
        """Copies in, the kernels, copies out, on that stream."""
        for step in (*self.before, *self.launches, *self.after):
            step(stream)

    def _configured(self, config, rows, groups, n, k, dtype, columns, **changes):
        """The configuration given, or the best one, the same on every rank."""
        sms, cfg = least_sms(self.world), config
        if self.alone:
            base = configs.ExpertConfig(**{f.name: getattr(config, f.name) for f in fields_of(configs.ExpertConfig)} if config else {})
            cfg = base if config else configs.best_groups(rows, groups, n, k, sms, base)
        elif cfg is None:
            cfg = configs.best_experts(rows, groups, n, k, sms, self.kernel.config(), self.world.size, self.returns)
        cfg = cfg.replace(dtype=dtype, b_transposed=columns, **changes)
        cfg.check()
        check_sms(self.kernel, cfg, sms)
        return cfg

    def _numbers(self, cfg, tables, n, k, **more):
        sms = self.world.num_sms - self.kernel.comm_sms(cfg)
        numbers = numbers_of(cfg, tables.capacity, tables.mine, n, k, sms)
        tasks = max(1, numbers["tasks"])         # without a group a block finds none
        numbers.update(tasks=tasks, blocks=min(tasks, sms), slots=tables.slots, bands=-(-tables.capacity // cfg.tile_m), **more)
        return {name: numbers[name] for name in self.kernel.numbers}

    def _workspace(self, cfg, tables, n, k, top_k, numbers, stream):
        """Counters of a shape, the same number on every rank; and whether they are new."""
        key = "workspace", self.kernel, self.returns, cfg, tables.slots, tables.experts, tables.capacity, n, k, top_k, stream
        first = key not in self.world.cache
        if first:
            self.world.cache[key] = Workspace(self.kernel, self.world, cfg, numbers.get("bands", 1))
        return self.world.cache[key], first

    def _of_tokens(self, kernel, workspace, dtype, shape, matrices, **more):
        """The launch of a kernel of this rank's tokens, (T, k) slots."""
        cfg = configs.MoeConfig(dtype=dtype, comm_sms=max(1, min(self.world.num_sms, -(-shape[0] // 16))))
        if not hasattr(workspace, "tokens"):
            workspace.tokens = Workspace(kernel, self.world, cfg, 1)
        numbers = {"tasks": 0, "blocks": 0, "tokens": shape[0], "top_k": shape[1], **more}
        self.launches.append(prepare(kernel, self.world, cfg, matrices, numbers, workspace.tokens).fire)

    def _buffer(self, workspace, rows, cols, dtype):
        """Memory of this rank that a workspace keeps."""
        if self.world.executor == "interpreter":
            import numpy as np
            from ..runtime import dtypes
            if not hasattr(workspace, "memory"):
                workspace.memory = np.full((rows, cols), np.nan, dtypes.numpy_dtype(dtype))
            return self._local(workspace.memory)
        from ..runtime import DeviceArray
        pitch = -(-cols * 2 // 16) * 16
        if not hasattr(workspace, "memory"):
            workspace.memory = DeviceArray.empty((max(rows * pitch // 4, 4),), "uint32", self.world.device)
        return Matrix(workspace.memory.pointer, rows, cols, pitch, dtype)

    def _shared(self, array):
        """A symmetric array of rows."""
        if self.world.executor == "interpreter":
            return Matrix(arrays=[array.peer(r) for r in range(self.world.size)])
        return Matrix(array.pointer, array.shape[0], array.shape[1], array.pitch, array.dtype, array.peers_table)

    def _experts(self, b, columns):
        """B, or a matrix that nobody reads."""
        if b.shape[0]:
            return self._stack(b, columns)
        empty = self._zeros(8, 8, b.dtype)
        if empty.arrays:
            return self._local(empty.arrays[self.world.rank].reshape(1, 8, 8))
        return empty._replace(outer=((1, 8 * empty.pitch),))

    def _ready(self, first):
        """After the first call's preparations: compiling and loading may take seconds, and loading may wait for kernels that spin."""
        if first and self.world.size > 1:
            self.world.barrier()


__all__ = ["Routes", "Tables", "ExpertCall"]
