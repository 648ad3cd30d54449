"""What the arguments of a collective must be: every rule in one place, checked on every rank before anything is launched."""

from collections import namedtuple

from ..errors import ContractError, DTypeError, LayoutError, PknumbaError, ShapeError, WorldError
from ..tiles import ITEMSIZE
from .arguments import check_apart
from .fast import is_symmetric, stream_source
from .geometry import contiguous, is_contiguous

#: Element types of collectives.
DTYPES = ("bfloat16", "float16", "float32", "int32")

#: The arrays as ``runtime.describe`` sees them (``out`` None where there is none), the operator's Form, what ranks must agree on, and
#: further arrays of the kernel.
Arguments = namedtuple("Arguments", "x out form terms others")


def check(kernel, world, x, out, config, stream, arguments, others=()):
    """The Arguments of a call. Raises the error of the first rule that an argument breaks."""
    name = kernel.operator
    if config is not None and not isinstance(config, kernel.config):
        raise ContractError(f"{name}: config is a {type(config).__name__}. It must be the kernel's. Pass a {kernel.config.__name__} "
                            "or None.")
    if config is not None:
        config.check()
    found = _stand_in(kernel, world, out, arguments) if x is None else described(name, world, "x", x)
    if found.dtype not in DTYPES:
        raise DTypeError(f"{name}: x is {found.dtype}. It must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}. Convert it first.",
                         dtype=found.dtype)
    form = kernel.form_on(world.rank, world.size, tuple(found.shape), **arguments)
    result = None
    if out is not None and kernel.receives(world.rank, **arguments):
        result = _check_out(name, world, out, found, form)
        check_apart(name, x, found, result, kernel.in_place and tuple(found.shape) == tuple(form.out))
    infos = kernel.others(world, found, result, others)
    stream_source(world, stream, out if x is None else x)()
    terms = {"x.shape": kernel.common(tuple(found.shape), **arguments), "dtype": found.dtype, "x": _kind(x)}
    if kernel.rooted:
        if result is not None and not is_contiguous(result.shape, result.strides, ITEMSIZE[result.dtype]):
            raise LayoutError(f"{name}: out has rows apart. Only some ranks have one, so it must be contiguous. Pass a contiguous array.")
    else:
        terms.update(out=_kind(out), others=[_kind(other) for other in others])
    return Arguments(found, result, form, terms, infos)


def described(name, world, label, x):
    """The ArrayInfo of an argument that lies where the world works, contiguous or symmetric."""
    from ..runtime import arrays
    if is_symmetric(x) and x.world is not world:
        raise WorldError(f"{name}: {label} belongs to another world. It must be memory of the world that is passed. Make it by "
                         "world.symmetric.")
    info = arrays.describe(x.local if is_symmetric(x) else x, label)
    wanted = "cpu" if world.executor == "interpreter" else world.device
    if info.device != wanted:
        raise WorldError(f"{name}: {label} lies on {_place(info.device)}, the world works on {_place(wanted)}. "
                         "Arrays must lie where the kernel runs. Use world.asarray(x) or another executor.")
    if wanted == "cpu" and arrays.library_of(info.owner) != "numpy":
        raise WorldError(f"{name}: {label} is a {type(info.owner).__module__}.{type(info.owner).__name__}. The interpreter works on "
                         "NumPy arrays. Use world.asarray(x).")
    if info.dtype in ITEMSIZE and not is_symmetric(x) and not is_contiguous(info.shape, info.strides, ITEMSIZE[info.dtype]):
        raise LayoutError(f"{name}: {label} has strides {tuple(info.strides)} for shape {tuple(info.shape)}. It must be contiguous. Pass a "
                          "row-major copy.", strides=tuple(info.strides))
    return info


def _check_out(name, world, out, x, form):
    y = described(name, world, "out", out)
    if tuple(y.shape) != tuple(form.out):
        raise ShapeError(f"{name}: out has shape {tuple(y.shape)}. The result has {tuple(form.out)}. Pass an array of that shape, or None.",
                         shape=tuple(y.shape))
    if y.dtype != x.dtype:
        raise DTypeError(f"{name}: out is {y.dtype} and x is {x.dtype}. The result has x's dtype. Pass an array of that dtype, or None.",
                         dtype=y.dtype)
    if y.device == "cpu" and not y.owner.flags.writeable:
        raise LayoutError(f"{name}: out is read-only. The result is written to it. Pass an array that can be written, or None.")
    return y


def _stand_in(kernel, world, out, arguments):
    """The ArrayInfo of an input that is None because nothing is read of it."""
    result = None if out is None else described(kernel.operator, world, "out", out)
    shape = result and kernel.stand_in(world.size, world.rank, tuple(result.shape), **arguments)
    if shape is None:
        raise ContractError(f"{kernel.operator}: x is None. Every rank that is read gives an array, and others give one or out. Pass x.")
    return result._replace(shape=shape, strides=contiguous(shape, ITEMSIZE.get(result.dtype, 1)))


def like(x):
    """A new array like x; None for what is none (the check says so)."""
    from ..runtime import arrays
    try:
        if type(x).__module__ == "torch":
            return x.new_empty(x.shape)
        local = x.local if is_symmetric(x) else x
        info = arrays.describe(local, "x")
        return arrays.empty_like_library(local, tuple(info.shape), info.dtype)
    except PknumbaError:
        return None


def rows_of_rank(kernel, world, x, y, given):
    """The ArrayInfos of (residual, weight, residual_out) of an x and an out of rows. Raises the error of the first rule that one breaks."""
    name, labels = kernel.operator, ("residual", "weight", "residual_out")
    if not x.shape:
        raise ShapeError(f"{name}: x has no dimension. Its last one is normalised. Reshape it.", shape=())
    infos = [described(name, world, label, array) for label, array in zip(labels, given)]
    for label, info, shape in zip(labels, infos, (tuple(x.shape), tuple(x.shape[-1:]), tuple(x.shape))):
        if tuple(info.shape) != shape:
            raise ShapeError(f"{name}: {label} has shape {tuple(info.shape)}. With an x of {tuple(x.shape)} it has {shape}. Reshape it.",
                             shape=tuple(info.shape))
        if info.dtype != x.dtype:
            raise DTypeError(f"{name}: {label} is {info.dtype} and x is {x.dtype}. All arrays have one dtype. Convert one.",
                             dtype=info.dtype)
    h = infos[2]
    if h.device == "cpu" and not h.owner.flags.writeable:
        raise LayoutError(f"{name}: residual_out is read-only. The sum is written to it. Pass an array that can be written, or None.")
    for label, other, same in (("x", x, False), ("residual", infos[0], True), ("weight", infos[1], False)):
        check_apart(name, h, other, h, same, label, "residual_out")
    for label, other in zip(labels, infos if y else ()):
        check_apart(name, y, other, y, False, label, "out")
    return infos


def _kind(x):
    return f"symmetric array {x.number}" if is_symmetric(x) else "no symmetric array"


def _place(device):
    return "the host" if device == "cpu" else f"device {device}"


def axis_of(name, axis, shape, label="axis"):
    """A dimension counted from the front. Raises ShapeError for one that x does not have."""
    if type(axis) is not int or not -len(shape) <= axis < len(shape):
        raise ShapeError(f"{name}: {label} = {axis!r} of an array of shape {shape}. It must be one of its {len(shape)} dimensions.",
                         axis=axis)
    return axis % len(shape)


def share_of(name, n, size, shape, axis):
    """n / size. Raises ShapeError if ranks cannot have equal shares of a dimension."""
    if n % size:
        raise ShapeError(f"{name}: dimension {axis} of shape {shape} for {size} ranks. Every rank has an equal share. Pad it to a "
                         f"multiple of {size}.", axis=axis)
    return n // size


def splits_of(name, size, shape, scatter_axis, gather_axis, scatter_splits, gather_splits):
    """(scattered axis, gathered axis, extents of the parts, extents of every rank). Raises ShapeError for what does not fit."""
    s, t = axis_of(name, scatter_axis, shape, "scatter_axis"), axis_of(name, gather_axis, shape, "gather_axis")
    scatter = scatter_splits or (share_of(name, shape[s], size, shape, s),) * size
    gather = gather_splits or (shape[t],) * size
    for label, extents in (("scatter_splits", scatter), ("gather_splits", gather)):
        if len(extents) != size or min(extents) < 0:
            raise ShapeError(f"{name}: {label} = {extents} for {size} ranks. It has an extent for each, none negative. Count again.")
    if sum(scatter) != shape[s] or s == t and gather_splits:
        raise ShapeError(f"{name}: scatter_splits {scatter} of dimension {s} of {shape}. They add up to it, and are given alone where "
                         "both axes are one. Count again.")
    return s, t, scatter, gather


def root_of(name, root, size, label="root"):
    """A rank. Raises WorldError for one that the world does not have."""
    if type(root) is not int or not 0 <= root < size:
        raise WorldError(f"{name}: {label} = {root!r}. The world has ranks 0 to {size - 1}.", root=root)
    return root
