"""Calls of kernels that multiply groups of rows: what their arguments must be, and how they are packed."""

from .. import config as configs
from ..config import tile_cost
from ..errors import LayoutError, ShapeError
from ..tiles import ITEMSIZE
from . import arguments
from .arguments import check_world, reached
from .call import Matrix, Workspace, prepare
from .fast import found, stream_source
from .matrices import MultiplyCall, _padded

#: Extents of the dimensions that a ragged map has beside rows and columns, and rows of each: see ``primitives.ragged``.
_MANY, _ROWS, _BACK = 0x7fff0000, 1 << 30, 1 << 34


def ragged(m):
    """The matrix with a map whose copies say where rows end. Stepping back 2^30 times by 2^34 bytes is a step by 2^64, which is none."""
    return m if m.arrays else m._replace(rows=_ROWS, outer=((_MANY, m.pitch), (_MANY, _BACK - m.pitch)))


def multiply_groups(kernel, world, A, B, offsets, out, config, stream):
    """C = A @ B group by group, in ``out`` or a new array. Arguments, result and errors are those of ``grouped_gemm``."""
    if out is None:
        out = _empty(A, B)
    world = reached(kernel, world)
    call = found(world, (kernel, config, stream), (A, B, offsets, out),
                 lambda: GroupedCall(kernel, world, A, B, offsets, out, config, stream))
    call.run(call.stream())
    return out


def _empty(A, B):
    """An uninitialised array of A's library for the result; None where A and B have no such shapes (the check says so)."""
    from ..runtime import arrays
    try:
        return arrays.empty_like_library(A, (A.shape[0], B.shape[2]), arrays.describe(A, "A").dtype)
    except (AttributeError, IndexError, TypeError):
        return None


class Both:
    """Launches of which the device chooses one."""

    def __init__(self, launches):
        self.launches = launches

    def fire(self, stream=0):
        """Launch both."""
        for launch in self.launches:
            launch.fire(stream)


class GroupedCall(MultiplyCall):
    """A product of groups of rows with these arrays: checked and packed."""

    def __init__(self, kernel, world, A, B, offsets, out, config, stream):
        self.name, self.kernel, self.world = kernel.title or kernel.__name__, kernel, world
        check_world(self.name, world)
        self.before, self.after, self.scratch, self.launch = [], [], [], None
        a, b, ends, c, columns = check(self.name, kernel, world, A, B, offsets, out, config)
        self.stream = stream_source(world, stream, A)
        (t, k), (groups, _, n) = a.shape, b.shape
        if 0 in (t, n, groups):
            return
        columns = columns or k == 0
        cfg = config or configs.best_groups(t, groups, n, max(k, 1), world.num_sms, kernel.config())
        rival = None if config else configs.rival_groups(cfg, t, groups, n, world.num_sms)
        cfgs = [x.replace(dtype=a.dtype, b_transposed=columns) for x in (cfg, rival) if x]
        matrices = {"A": ragged(self._operand(a)), "B": self._stack(b, columns), "C": ragged(self._kept(out, c)),
                    "ends": self._vector(ends)}
        launches = []
        for cfg, numbers in zip(cfgs, rivals(cfgs, t, groups, n, max(k, 1), world.num_sms)):
            cfg.check()
            key = ("workspace", kernel, cfg, t, groups, n, k, stream if stream is None else self.stream())
            if key not in world.cache:
                world.cache[key] = Workspace(kernel, world, cfg, numbers["tasks"])
            launches.append(prepare(kernel, world, cfg, matrices, numbers, world.cache[key]))
        self.launch = launches[0] if len(launches) == 1 else Both(launches)
        self.shorten()

    def _stack(self, b, columns):
        """B as an array of row-major matrices; of their transposes if ``columns``."""
        groups, (rows, cols) = b.shape[0], b.shape[:0:-1] if columns else b.shape[1:]
        if 0 in b.shape:                         # no depth: one zero column, and what lies beyond it
            flat = self._zeros(groups * rows, 8, b.dtype)
            if flat.arrays:
                return self._local(flat.arrays[self.world.rank].reshape(groups, rows, 8))
            return flat._replace(rows=rows, outer=((groups, rows * flat.pitch),))
        if self.world.executor == "interpreter":
            return self._local(b.owner.transpose(0, 2, 1) if columns else b.owner)
        step, pitch, width = b.strides[0], b.strides[2 if columns else 1], cols * ITEMSIZE[b.dtype]
        if rows == 1:
            pitch = _padded(width)
        if groups == 1:
            step = rows * pitch
        if not (b.pointer % 16 or pitch % 16 or step % 16):
            return Matrix(b.pointer, rows, cols, pitch, b.dtype, outer=((groups, step),))
        from ..runtime import driver
        padded, source = self._scratch(groups * rows * _padded(width)), b.pointer
        self.before += [driver.copier_2d(padded + e * rows * _padded(width), _padded(width), source + e * step, pitch, width, rows)
                        for e in range(groups)]
        return Matrix(padded, rows, cols, _padded(width), b.dtype, outer=((groups, rows * _padded(width)),))

    def _kept(self, out, c):
        """C as in ``_result``; where it is padded memory, with what the result holds in rows of no group."""
        m = self._result(out, c)
        if self.after:
            from ..runtime import driver
            width = c.shape[1] * ITEMSIZE[c.dtype]
            self.before.append(driver.copier_2d(m.pointer, m.pitch, c.pointer, c.strides[0], width, c.shape[0]))
        return m

    def _vector(self, x):
        if self.world.executor == "interpreter":
            return self._local(x.owner)
        return Matrix(x.pointer, 1, x.shape[0], 4 * x.shape[0], x.dtype)


def numbers_of(cfg, rows, groups, n, k, sms):
    """What ``g`` of a Grouped kernel holds. ``tasks``: at most, whatever the groups."""
    cols = -(-n // cfg.tile_n)
    tasks = (rows // cfg.tile_m + min(groups, rows)) * cols
    blocks = max(1, min(tasks, sms))
    return {"tasks": tasks, "k_tiles": -(-k // cfg.tile_k), "groups": groups, "rows": rows, "cols": cols, "turns": -(-tasks // blocks),
            "sms": sms, "second": 0, "widths": (cols,) * 2, "costs": (0, 0)}


def rivals(cfgs, rows, groups, n, k, sms):
    """The numbers of each of one or two configurations."""
    found = [numbers_of(cfg, rows, groups, n, k, sms) for cfg in cfgs]
    if len(cfgs) == 1:
        return found
    pairs = {"widths": [x["cols"] for x in found], "costs": [tile_cost(cfg, k) for cfg in cfgs]}
    return [{**x, "second": i, **{name: tuple(pair[::-1] if i else pair) for name, pair in pairs.items()}} for i, x in enumerate(found)]


def check(name, kernel, world, A, B, offsets, out, config):
    """(A, B, offsets, out as ``runtime.describe`` sees them, whether B is transposed). Raises for the first rule that is broken."""
    from ..runtime import arrays
    arguments.check_config(name, kernel, config)
    named = ("A", A), ("B", B), ("offsets", offsets)
    a, b, ends = (arguments.home(name, world, label, arrays.describe(x, label)) for label, x in named)
    for label, x, dims in (("A", a, 2), ("B", b, 3), ("offsets", ends, 1)):
        if len(x.shape) != dims:
            raise ShapeError(f"{name}: {label} has shape {tuple(x.shape)}. It must have {dims} dimension{'s' * (dims > 1)}. Reshape it.",
                             shape=tuple(x.shape))
    arguments.check_kinds(name, a.dtype, b.dtype, ends.dtype)
    if a.shape[1] != b.shape[1] or ends.shape[0] != b.shape[0]:
        raise ShapeError(f"{name}: A {tuple(a.shape)}, B {tuple(b.shape)} and {ends.shape[0]} offsets do not fit. A's columns must equal "
                         "B's rows, and there is an offset for each of B's matrices. Transpose B's last two dimensions, or count again.")
    arguments.check_rows(name, "A", a.shape, a.strides, a.dtype)
    columns = _columns(name, b)
    if ends.shape[0] > 1 and ends.strides[0] != 4:
        raise LayoutError(f"{name}: offsets are {ends.strides[0]} bytes apart. They must be contiguous. Pass a copy.")
    c = arguments.check_out(name, world, out, a.dtype, (a.shape[0], b.shape[2]))
    if config is not None:
        config.replace(dtype=a.dtype, b_transposed=columns).check()
    return a, b, ends, c, columns


def _columns(name, b):
    """Whether B's matrices are transposes of row-major ones. Raises LayoutError for matrices that are neither."""
    if 0 in b.shape:
        return False
    inner = b._replace(shape=b.shape[1:], strides=b.strides[1:])
    columns = arguments.is_transposed(inner)
    shape, strides = (inner.shape[::-1], inner.strides[::-1]) if columns else (inner.shape, inner.strides)
    arguments.check_rows(name, "B", shape, strides, b.dtype)
    if b.shape[0] > 1 and b.strides[0] < max(strides[0], shape[1] * ITEMSIZE[b.dtype]) * shape[0]:
        raise LayoutError(f"{name}: B's matrices are {b.strides[0]} bytes apart. They must follow each other and not overlap. "
                          "Pass a copy.", strides=tuple(b.strides))
    return columns


__all__ = ["multiply_groups", "GroupedCall", "numbers_of", "ragged", "rivals"]
