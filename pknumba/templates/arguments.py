"""What the arguments of a matrix product must be: every rule in one place, checked on every rank before anything is launched."""

from collections import namedtuple

from ..errors import ContractError, DTypeError, LayoutError, ShapeError, WorldError
from ..tiles import DTYPES, ITEMSIZE
from .fast import is_symmetric, stream_source

#: The arrays as ``runtime.describe`` sees them. ``m``: rows of the whole product; ``transposed``: B is the transpose of a row-major
#: array; ``symmetric``: number of the symmetric array that out is, where that matters to other ranks; else 0.
Operands = namedtuple("Operands", "a b c m transposed symmetric")


def reached(kernel, world):
    """The world that a kernel works in: that of the node for one that does not communicate."""
    return world.node if getattr(world, "spans", False) and not kernel.communicates() else world


def over_nodes(name, world):
    """What ``nodes`` does instead of an operator that is made of others; None on a world of one node."""
    if getattr(world, "spans", False):
        from .. import nodes
        return getattr(nodes, name)


def check_world(name, world):
    """Raise ContractError for what is no World, WorldError or HangError for one that cannot be used."""
    if not hasattr(world, "executor"):
        raise ContractError(f"{name}: {type(world).__name__} is no World. Operators run on a world. Pass World.local() or "
                            "World.mpi() first.")
    if world.spans:
        from .. import nodes
        raise nodes.unsupported(name, world)
    world.check()


def check(name, kernel, world, A, B, out, config, stream, rows=None):
    """The Operands of a call. Raises the error of the first rule that an argument breaks.

    Args:
        name: of the operator, for messages; the others are those of the operator.
    """
    from ..runtime import arrays
    check_config(name, kernel, config)
    a, b = (home(name, world, label, arrays.describe(_local(x), label)) for label, x in (("A", A), ("B", B)))
    for label, x in (("A", a), ("B", b)):
        if len(x.shape) != 2:
            raise ShapeError(f"{name}: {label} has shape {_text(x.shape)}. It must be a matrix. Reshape it to two dimensions.",
                             shape=_text(x.shape))
        if x.dtype not in kernel.config.dtypes:
            raise DTypeError(f"{name}: {label} is {x.dtype}. It must be {' or '.join(kernel.config.dtypes)}. Convert it first.",
                             dtype=x.dtype)
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"{name}: A {_text(a.shape)} and B {_text(b.shape)} do not multiply. A's columns must equal B's rows. "
                         "Transpose one of them.")
    if a.dtype != b.dtype:
        raise DTypeError(f"{name}: A is {a.dtype} and B is {b.dtype}. Both must have one dtype. Convert one.")
    check_rows(name, "A", a.shape, a.strides, a.dtype)
    transposed = is_transposed(b)
    if a.dtype == "float32" and not transposed and 0 not in b.shape:
        raise LayoutError(f"{name}: B is float32 and row-major. The tensor cores take float32 along the depth. Pass the transpose of a "
                          "row-major (N, K) array.", strides=_text(b.strides))
    check_rows(name, "B", b.shape[::-1] if transposed else b.shape, b.strides[::-1] if transposed else b.strides, b.dtype)
    m = _whole(name, kernel, world, a, rows)
    c = check_out(name, world, out, a.dtype, kernel.form.result(m, b.shape[1], world))
    for label, x in (("A", a), ("B", b)):
        check_apart(name, c, x, c, False, label)
    if config is not None:
        config.of(a.dtype, transposed).check()
    stream_source(world, stream, A)()
    return Operands(a, b, c, m, transposed, out.number if is_symmetric(out) and kernel.shares_result() else 0)


def check_config(name, kernel, config):
    """Raise ContractError for a configuration of another kernel."""
    if config is not None and not isinstance(config, kernel.config):
        raise ContractError(f"{name}: config is a {type(config).__name__}. It must be the kernel's. Pass a {kernel.config.__name__} "
                            "or None.")


def _whole(name, kernel, world, a, rows):
    """Rows of the whole product."""
    if rows is not None and (not isinstance(rows, int) or rows < 0):
        raise ShapeError(f"{name}: rows = {rows!r}. It is the number of rows of all ranks' A together. Pass an int, or None.")
    m = kernel.form.whole(a.shape[0], world, rows)
    given = kernel.form.given(m, world)
    if a.shape[0] != given:
        raise ShapeError(f"{name}: A has shape {_text(a.shape)}. Rank {world.rank}'s share of {m} rows has {given}. Pass "
                         "numpy.array_split(A, world.size)[world.rank].", shape=_text(a.shape))
    return m


def check_kinds(name, a, b, numbers, a_label="A", numbers_label="offsets"):
    """Raise DTypeError unless a and b are one dtype that can be multiplied, and numbers int32."""
    if a not in DTYPES or b != a or numbers != "int32":
        raise DTypeError(f"{name}: {a_label} is {a}, B is {b}, {numbers_label} are {numbers}. {a_label} and B have one dtype, "
                         f"{' or '.join(DTYPES)}; {numbers_label} are int32. Convert them first.", dtype=a)


def check_apart(name, given, x, y, in_place, read="x", written="out"):
    """Raise LayoutError where x and out share memory, unless they are the same array and the operator may work in place.

    Args:
        given: None where there is no out. x, y: ArrayInfos of what is read and of what is written.
    """
    if given is None or 0 in x.shape or 0 in y.shape or in_place and x.pointer == y.pointer or _apart(x, y):
        return
    rule = "They are the same array or have none in common" if in_place else "What is read must not be written meanwhile"
    raise LayoutError(f"{name}: {read} and {written} share memory. {rule}. Pass another {written}, or None.")


def _apart(x, y):
    """Whether two arrays have no byte in common; columns of one larger matrix lie between each other."""
    (a, a_end), (b, b_end) = _extent(x), _extent(y)
    if a_end <= b or b_end <= a:
        return True
    pitches = {max(i.strides, default=0) for i in (x, y)}
    if len(x.shape) != 2 or len(y.shape) != 2 or len(pitches) > 1:
        return False
    pitch, widths = pitches.pop(), [ITEMSIZE[i.dtype] * i.shape[i.strides.index(min(i.strides))] for i in (x, y)]
    at = (b - a) % pitch if pitch else 0
    return widths[0] <= at and at + widths[1] <= pitch


def _extent(info):
    return info.pointer, info.pointer + ITEMSIZE[info.dtype] + sum((n - 1) * s for n, s in zip(info.shape, info.strides))


def check_out(name, world, out, dtype, product):
    """out as ``runtime.describe`` sees it, if a product of that shape can be written to it."""
    from ..runtime import arrays
    if is_symmetric(out) and out.world is not world:
        raise WorldError(f"{name}: out belongs to another world. It must be memory of the world that is passed. Make it by "
                         "world.symmetric.")
    c = home(name, world, "out", arrays.describe(_local(out), "out"))
    if tuple(c.shape) != product:
        raise ShapeError(f"{name}: out has shape {_text(c.shape)}. The product has {_text(product)}. Pass an array of that shape, "
                         "or None.", shape=_text(c.shape))
    if c.dtype != dtype:
        raise DTypeError(f"{name}: out is {c.dtype} and A is {dtype}. The result has A's dtype. Pass an array of that dtype, or "
                         "None.", dtype=c.dtype)
    check_rows(name, "out", c.shape, c.strides, c.dtype)
    if c.device == "cpu" and not c.owner.flags.writeable:
        raise LayoutError(f"{name}: out is read-only. The product is written to it. Pass an array that can be written, or None.")
    return c


def home(name, world, label, x):
    """x, if it lies where the world works."""
    from ..runtime import arrays
    wanted = "cpu" if world.executor == "interpreter" else world.device
    if x.device != wanted:
        raise WorldError(f"{name}: {label} lies on {_place(x.device)}, the world works on {_place(wanted)}. "
                         "Arrays must lie where the kernel runs. Use world.asarray(x) or another executor.")
    if wanted == "cpu" and arrays.library_of(x.owner) != "numpy":
        raise WorldError(f"{name}: {label} is a {type(x.owner).__module__}.{type(x.owner).__name__}. The interpreter works on "
                         "NumPy arrays. Use world.asarray(x).")
    return x


def is_transposed(b):
    """Whether B is the transpose of a row-major array; where both readings are right it is not, or, of float32, it is."""
    size = ITEMSIZE[b.dtype]
    if b.dtype == "float32":
        return b.shape[0] <= 1 or b.strides[0] == size
    return b.shape[1] > 1 and b.strides[1] != size and (b.shape[0] == 1 or b.strides[0] == size)


def check_rows(name, label, shape, strides, dtype):
    """Raise LayoutError unless rows are contiguous and do not overlap."""
    (rows, cols), size = shape, ITEMSIZE[dtype]
    if not rows or not cols:
        return
    if cols > 1 and strides[1] != size:
        whose = "Its rows or its columns" if label == "B" else "Its rows"
        raise LayoutError(f"{name}: {label} has strides {_text(strides)}. {whose} must be contiguous. Pass a row-major copy.",
                          strides=_text(strides))
    if rows > 1 and strides[0] < cols * size:
        raise LayoutError(f"{name}: {label} has rows of {cols * size} bytes that are {strides[0]} bytes apart. Rows must follow each "
                          "other and not overlap. Pass a row-major copy.", strides=_text(strides))


def _local(x):
    return x.local if is_symmetric(x) else x


def _text(numbers):
    return tuple(int(n) for n in numbers)


def _place(device):
    return "the host" if device == "cpu" else f"device {device}"


__all__ = ["Operands", "check", "check_world", "over_nodes", "reached", "check_config", "check_apart", "check_kinds", "check_out",
           "check_rows", "home", "is_transposed"]
