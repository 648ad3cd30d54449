"""Calls of attention on one rank: what the arrays must be, a configuration and numbers for them, and a launch that is remembered."""

import math
import struct
import sys
from collections import namedtuple
from types import SimpleNamespace

from .. import config as configs
from ..errors import DTypeError, LayoutError, ShapeError
from ..lowering.variant import debug
from ..tiles import DTYPES, ITEMSIZE, Task
from .arguments import check_config, check_world, home, reached
from .call import Matrix, Steps, Workspace, device_table, prepare
from .fast import found, is_symmetric, stream_source
from .lists import MOST_LISTED, in_equal_groups
from .repeated import NEWEST

#: Bytes of K and V that the L2 cache holds beside everything else: heads whose tiles are walked together have no more.
_CACHED = 32 << 20

#: What a tile takes besides its blocks of K and V, in such blocks: until its first product, and after its last.
_ENDS = 1.3

#: The arrays of a call, or what ``runtime.describe`` sees in them. ``lse`` is False where nobody wants it.
Heads = namedtuple("Heads", "q k v out lse")


def attend(kernel, world, q, k, v, out, lse, config, stream, *, causal=False, scale=None, shift=0):
    """(O, lse) by ``kernel``. Arguments, result and errors are those of the public operators."""
    return remembered(AttentionCall, kernel, world, q, k, v, out, lse, config, stream, causal=causal, scale=scale, shift=shift)


def remembered(call_of, kernel, world, q, k, v, out, lse, config, stream, **options):
    """(O, lse) by a call that is prepared once for the same arrays and options."""
    world = reached(kernel, world)
    if out is None or lse is None:
        out, lse = results(q, out, lse)
    call = found(world, (kernel, config, stream, *options.values()), (q, k, v, out, lse),
                 lambda: call_of(kernel, world, Heads(q, k, v, out, lse), config, stream, **options))
    world.cache[NEWEST] = call
    call.run(call.stream())
    return _local(out), lse is not False and _local(lse)


def results(q, out, lse):
    """Arrays of q's library for what was not given; None where q is no array of four dimensions (the check says so)."""
    if out is not None and type(q).__module__ == "torch" and q.dim() == 4:      # lse alone, of which a call nearly always has a new one
        return out, q.new_empty(q.shape[:3], dtype=sys.modules["torch"].float32)
    try:
        from ..runtime import arrays
        info = arrays.describe(_local(q), "q")
        b, h, s, d = info.shape
        between = info.strides[1] < info.strides[2] and h > 1 and hasattr(q, "shape")    # heads lie between queries
        if out is None:
            out = arrays.empty_like_library(_local(q), (b, s, h, d) if between else (b, h, s, d), info.dtype)
            if between:
                out = out.transpose(1, 2) if arrays.library_of(out) == "torch" else out.swapaxes(1, 2)
        if lse is None:
            lse = arrays.empty_like_library(_local(q), (b, h, s), "float32")
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return out, lse


class AttentionCall(Steps):
    """Attention of these arrays: checked and packed."""

    def __init__(self, kernel, world, heads, config, stream, scale=None, **options):
        self.name, self.kernel, self.world = kernel.title or kernel.__name__, kernel, world
        check_world(self.name, world)
        self.launch, self.before, self.after, self.scratch, self.first = None, [], [], [], False
        found = self._found(heads, config, scale=scale, **options)
        self.stream = stream_source(world, stream, heads.q)
        if self._nothing(found):
            return
        cfg = self._config(config, found, **options)
        cfg.check()
        self.stream_key = stream if stream is None else self.stream()
        numbers = self._numbers(cfg, found, scale or found.q.shape[3] ** -0.5, **options)
        self.order = self._order(cfg, numbers) if "order" in self.kernel.tensors else None
        numbers = {name: numbers[name] for name in self.kernel.numbers}
        workspace = self._workspace(cfg, numbers, found)
        self.launch = prepare(self.kernel, world, cfg, self._all_matrices(found, workspace), numbers, workspace)
        if world.executor == "gpu" and debug():
            from .debug import poisoned
            poisoned(self, found.out)
        if self.first and world.size > 1:
            world.barrier()                      # compiling and loading may take seconds, and loading may wait for kernels that spin
        self.shorten()

    def _found(self, heads, config, causal, scale, shift):
        """The Heads."""
        return check(self.name, self.kernel, self.world, heads, config, causal, scale, shift)

    def _nothing(self, found):
        """Whether there is nothing to do."""
        return 0 in found.q.shape[:3]

    def _config(self, config, found, causal, **_):
        """The configuration given, or the best one."""
        return fitted(config or configs.attention_config(found.q.shape[3]), found, causal)

    def _workspace(self, cfg, numbers, found):
        """What calls keep between them."""
        key = "workspace", self.kernel, cfg, self.stream_key
        if key not in self.world.cache:
            self.world.cache[key] = Workspace(self.kernel, self.world, cfg, numbers["tasks"])
        return self.world.cache[key]

    def _keys(self, found):
        """How many keys a head has, for all queries of this rank together."""
        return found.k.shape[2]

    def _numbers(self, cfg, found, scale, shift=0, **_):
        """What ``g`` holds besides rank and world size."""
        (b, h, s, d), pairs, keys = found.q.shape, found.k.shape[1], self._keys(found)
        tiles, group = -(-s // cfg.tile_q), h // pairs
        fit = max(1, _CACHED // max(1, 2 * keys * d * ITEMSIZE[cfg.dtype])) * group
        tasks = tiles * b * h
        log_scale = scale * math.log2(math.e)
        return dict(tasks=tasks, blocks=min(tasks, self.world.num_sms), tiles=tiles, lines=b * h, heads=h, group=group,
                    together=min(fit, b * h) if cfg.causal else 1, queries=s, keys=keys, shift=shift, bend=0, jump=0, chunk=0, extra=0,
                    splits=1, turns=-(-tasks // max(1, min(tasks, self.world.num_sms))), listed=0, scale=_bits(log_scale),
                    slack=_bits(cfg.slack / log_scale))

    def _order(self, cfg, numbers):
        """Lists of tasks where these are unequal, and not too many; what it means in ``numbers``."""
        import numpy as np
        if not cfg.causal or not numbers["blocks"] < numbers["tasks"] <= MOST_LISTED:
            return np.zeros((1, 1), np.int32)
        g = SimpleNamespace(**{**numbers, "together": 1}, rank=self.world.rank, world_size=self.world.size)
        costs = [cost_of(self.kernel, cfg, g, task) for task in range(numbers["tiles"])]
        together, order = in_equal_groups(costs, *(numbers[n] for n in ("lines", "group", "together", "blocks")))
        numbers.update(together=together, turns=order.shape[1], listed=1)
        return order

    # ---- arrays as the kernel sees them
    def _all_matrices(self, found, workspace):
        """{tensor: Matrix}."""
        more = {} if self.order is None else {"order": self._listed(self.order.reshape(1, -1))}
        return {"Q": self._matrices(found.q), "K": self._matrices(found.k), "V": self._matrices(found.v), "O": self._matrices(found.out),
                "L": self._lines(found.lse, found.q.shape[0] * found.q.shape[1]), **more}

    def _listed(self, row):
        """A row of integers, on the device once for all calls that have the same."""
        if self.world.executor == "interpreter":
            return self._own(row)
        return Matrix(device_table(self.world, row.tobytes()), 1, row.size, row.nbytes, "int32")

    def _own(self, array):
        return Matrix(arrays=[array if r == self.world.rank else None for r in range(self.world.size)])

    def _matrices(self, x):
        """An array of matrices; one row of zeros where it has no rows, which nobody sees."""
        b, h, rows, d = x.shape
        if self.world.executor == "interpreter":
            import numpy as np
            return self._own(x.owner if rows else np.zeros((b, h, 1, d), x.owner.dtype))
        if rows:
            return matrices(x.pointer, x.shape, x.strides, x.dtype)
        from ..runtime import DeviceArray, driver
        memory, pitch = DeviceArray.empty(b * h * d // 2, "uint32", self.world.device), d * ITEMSIZE[x.dtype]
        self.scratch.append(memory)
        self.before.append(lambda stream: driver.memset(memory.pointer, 0, b * h * pitch, stream))
        return matrices(memory.pointer, (b, h, 1, d), (h * pitch, pitch, pitch, ITEMSIZE[x.dtype]), x.dtype)

    def _lines(self, x, heads=0):
        """The log-sum-exp as rows of queries; of none, where nobody wants it of so many heads."""
        if not x:
            import numpy as np
            nothing = np.empty((heads, 0), np.float32)
            return self._own(nothing) if self.world.executor == "interpreter" else Matrix(0, heads, 0, 0, "float32")
        b, h, s = x.shape
        if self.world.executor == "interpreter":
            return self._own(x.owner.reshape(b * h, s))
        return Matrix(x.pointer, b * h, s, 4 * s, "float32")


def cost_of(kernel, cfg, g, number):
    """What a task takes, in blocks of K and V of all its consumers."""
    first = kernel.locate(cfg, g, Task(number, 0, 0, 0, 0))[2]
    starts = range(first, first + cfg.tile_q, cfg.part_q)
    return sum(kernel.blocks_of(cfg, g, start, cfg.part_q, hop) for hop in range(g.world_size if cfg.spread else 1) for start in starts) \
        + _ENDS * cfg.consumers


def fitted(cfg, found, causal):
    """The configuration for heads of that width and dtype."""
    return cfg.replace(width=-(-found.q.shape[3] // cfg.step) * cfg.step, causal=bool(causal), dtype=found.q.dtype)


def matrices(pointer, shape, strides, dtype):
    """The Matrix of a device array (batch, heads, rows, columns). Steps of dimensions of one do not matter."""
    b, h, rows, cols = shape
    pitch = strides[2] if rows > 1 else -(-cols * ITEMSIZE[dtype] // 16) * 16
    steps = [step if n > 1 else rows * pitch for n, step in ((h, strides[1]), (b, strides[0]))]
    return Matrix(pointer, rows, cols, pitch, dtype, outer=((h, steps[0]), (b, steps[1])))


def _local(x):
    return x.local if is_symmetric(x) else x


def _bits(x):
    """The bits of a number as float32, at most the largest."""
    return struct.unpack("<i", struct.pack("<f", min(x, 3.4e38)))[0]


# ---- rules
def check(name, kernel, world, heads, config, causal, scale, shift):
    """The Heads of a call. Raises the error of the first rule that an argument breaks."""
    from ..runtime import arrays
    check_config(name, kernel, config)
    check_numbers(name, causal, scale, shift)

    def found_of(labels):
        return [home(name, world, label, arrays.describe(_local(getattr(heads, label)), label)) for label in labels]
    given = found_of("qkv")
    for label, x in zip("qkv", given):
        if len(x.shape) != 4:
            raise ShapeError(f"{name}: {label} has shape {tuple(x.shape)}. It must be (batch, heads, rows, width). Reshape it.",
                             shape=tuple(x.shape))
        if x.dtype not in DTYPES:
            raise DTypeError(f"{name}: {label} is {x.dtype}. It must be {' or '.join(DTYPES)}. Convert it first.", dtype=x.dtype)
    _check_shapes(name, *(tuple(x.shape) for x in given))
    found = Heads(*given, *found_of(("out", "lse") if heads.lse is not False else ("out",)), *([False] if heads.lse is False else []))
    _check_results(name, found)
    for label, x in zip(("q", "k", "v", "out"), found):
        check_layout(name, label, x)
    for label, x in (("out", found.out), ("lse", found.lse)):
        if x and x.device == "cpu" and not x.owner.flags.writeable:
            raise LayoutError(f"{name}: {label} is read-only. The result is written to it. Pass an array that can be written, or None.")
    return found


def check_numbers(name, causal, scale, shift):
    """Raise ShapeError unless causal, scale and shift are what they must be."""
    if causal not in (False, True):
        raise ShapeError(f"{name}: causal = {causal!r}. It is whether queries see only keys up to their own. Pass True or False.")
    if scale is not None and not (isinstance(scale, (int, float)) and 0 < scale < math.inf):
        raise ShapeError(f"{name}: scale = {scale!r}. It multiplies scores and is a positive number. Negate q for a negative one.")
    if type(shift) is not int or abs(shift) >= 1 << 24 or shift and not causal:
        raise ShapeError(f"{name}: shift = {shift!r}. It is an integer, and says which keys a query sees if causal. Pass 0.")


def _check_shapes(name, q, k, v):
    if k != v or k[0] != q[0] or k[3] != q[3]:
        raise ShapeError(f"{name}: q {q}, k {k} and v {v} do not fit. k and v have one shape, and q's batch and width. Reshape "
                         "some.")
    if k[1] == 0 and q[1] or k[1] and q[1] % k[1]:
        raise ShapeError(f"{name}: {q[1]} query heads for {k[1]} heads of k and v. Each of these serves equally many. Repeat some.",
                         heads=q[1], pairs=k[1])
    if not 0 < q[3] <= 256:
        raise ShapeError(f"{name}: heads of {q[3]} elements. A head has up to 256. Split it.", width=q[3])
    if q[0] * q[1] * -(-q[2] // 64) >= 1 << 30 or max(q[2], k[2]) >= 1 << 24:
        raise ShapeError(f"{name}: q {q} and k {k}. A call counts fewer than 2^24 rows, and 2^30 tiles. Split it.")


def _check_results(name, found):
    """Raise an error unless out is like q and lse holds a contiguous float32 for each of its rows."""
    q, out, lse = (x and tuple(x.shape) for x in (found.q, found.out, found.lse))
    if out != q or lse and lse != q[:3]:
        raise ShapeError(f"{name}: out has shape {out} and lse {lse} for q {q}. They are {q} and {q[:3]}. Pass None.")
    if {x.dtype for x in found[1:4]} != {found.q.dtype} or found.lse and found.lse.dtype != "float32":
        raise DTypeError(f"{name}: q is {found.q.dtype}, k {found.k.dtype}, v {found.v.dtype}, out {found.out.dtype}, lse "
                         f"{found.lse and found.lse.dtype}. The first four have one dtype, lse is float32. Convert some.")
    if not found.lse:
        return
    b, h, s = found.lse.shape
    if 0 not in (b, h, s) and [st for n, st in zip((b, h, s), found.lse.strides) if n > 1] != \
            [st for n, st in zip((b, h, s), (4 * h * s, 4 * s, 4)) if n > 1]:
        raise LayoutError(f"{name}: lse has strides {tuple(found.lse.strides)}. It must be contiguous. Pass None.")


def check_layout(name, label, x):
    """Raise LayoutError for an array of matrices that the bulk copy engine cannot move."""
    if 0 in x.shape:
        return
    size = ITEMSIZE[x.dtype]
    if x.shape[3] > 1 and x.strides[3] != size:
        raise LayoutError(f"{name}: {label} has strides {tuple(x.strides)}. Elements of a row must be contiguous. Pass a copy.",
                          strides=tuple(x.strides))
    steps = [st for n, st in zip(x.shape[:3], x.strides[:3]) if n > 1]
    if x.shape[3] * size % 16 or any(st % 16 or st < 16 for st in steps) or x.device != "cpu" and x.pointer % 16:
        raise LayoutError(f"{name}: {label} has shape {tuple(x.shape)}, strides {tuple(x.strides)} and address {x.pointer:#x}. Rows have a "
                          "multiple of 16 bytes and begin on one, without overlapping. Pass a padded copy.", strides=tuple(x.strides))


__all__ = ["attend", "remembered", "AttentionCall", "Heads", "check", "check_layout", "check_numbers", "fitted", "matrices"]
