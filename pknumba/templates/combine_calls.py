"""Calls that bring experts' results back to their tokens: what their arguments must be, what ranks agree on, and the launch."""

from ..errors import ContractError, DTypeError, LayoutError, ShapeError
from . import arguments
from .agreement import agreed
from .call import Matrix, prepare
from .expert_calls import ExpertCall, Routes
from .fast import found, stream_source
from .group_calls import _columns, ragged


def combine(kernel, adder, world, Y, routes, B, weights, out, config, stream):
    """Arguments, result and errors are those of ``moe_combine``. adder: the kernel that sums."""
    if out is None:
        out = _sums(Y, B, weights)
    tables = getattr(routes, "tables", None)
    current = tables and routes.number == tables.latest         # else the check says so
    call = found(world, (kernel, current and tables, config, stream), (Y, B, weights, out),
                 lambda: CombineCall(kernel, adder, world, Y, routes, B, weights, out, config, stream))
    call.run(call.stream())
    return out


class CombineCall(ExpertCall):
    """A combine of these arrays: checked, agreed with the other ranks, and packed."""

    returns = True

    def __init__(self, kernel, adder, world, Y, routes, B, weights, out, config, stream):
        self._start(kernel, world)
        y, b, w, c, columns = agreed(world, self.name, kernel, lambda: check_combine(self.name, kernel, world, Y, routes, B, weights, out,
                                                                                     config),
                                     lambda found: {"Y.shape": list(found[0].shape), "top k": found[2].shape[1],
                                                    "N": found[1].shape[2], "dtype": found[0].dtype, "config": repr(config)})
        self.stream = stream_source(world, stream, Y)
        top_k, n, k, tables = w.shape[1], b.shape[2], b.shape[1], routes.tables
        if 0 in (n, k):
            raise ShapeError(f"{self.name}: B has shape {tuple(b.shape)}. None of its last dimensions may be 0. Leave the call out.")
        cfg = self._configured(config, tables.slots, -(-tables.experts // world.size), n, k, y.dtype, columns)
        numbers = self._numbers(cfg, tables, n, k)
        at = stream if stream is None else self.stream()
        workspace, first = self._workspace(cfg, tables, n, k, top_k, numbers, at)
        if first and not self.alone:
            workspace.landing = world.symmetric((tables.slots, n), y.dtype)
        products = self._buffer(workspace, tables.capacity, n, y.dtype)
        landed = products if self.alone else self._shared(workspace.landing)
        matrices = {"A": ragged(self._operand(y)), "B": self._experts(b, columns), "C": ragged(products), "ends": tables.row(tables.ends),
                    "source": tables.row(tables.source), "Z": landed}
        self.launches.append(prepare(self.kernel, world, cfg, matrices, numbers, workspace).fire)
        if w.shape[0]:
            sums = {"out": self._result(out, c), "C": products, "Z": landed, "place": tables.row(tables.place), "weights": self._weights(w)}
            self._of_tokens(adder, workspace, y.dtype, w.shape, sums, capacity=tables.capacity)
        self._ready(first)

    def _weights(self, w):
        if self.world.executor == "interpreter":
            return self._local(w.owner)
        return Matrix(w.pointer, w.shape[0], w.shape[1], 4 * w.shape[1], w.dtype)


def _sums(Y, B, weights):
    """An uninitialised array of Y's library for the result; None where shapes do not fit (the check says so)."""
    from ..runtime import arrays
    try:
        return arrays.empty_like_library(Y, (weights.shape[0], B.shape[2]), arrays.describe(Y, "Y").dtype)
    except (AttributeError, IndexError, TypeError):
        return None


def check_combine(name, kernel, world, Y, routes, B, weights, out, config):
    """(Y, B, weights, out as ``runtime.describe`` sees them, whether B is transposed). Raises for the first rule that is broken."""
    from ..runtime import arrays
    arguments.check_config(name, kernel, config)
    if not isinstance(routes, Routes) or routes.tables.world is not world:
        raise ContractError(f"{name}: routes are {type(routes).__name__}. They say where the rows of Y belong. Pass the Routes that "
                            "moe_dispatch_gemm returned on this world.")
    tables = routes.tables
    if routes.number != tables.latest:
        raise ContractError(f"{name}: routes are of an earlier dispatch. The tables of a shape hold those of the last one. Combine before "
                            "the next dispatch, or pass it another stream.")
    named = ("Y", Y), ("B", B), ("weights", weights)
    y, b, w = (arguments.home(name, world, label, arrays.describe(x, label)) for label, x in named)
    for label, x, dims in (("Y", y, 2), ("B", b, 3), ("weights", w, 2)):
        if len(x.shape) != dims:
            raise ShapeError(f"{name}: {label} has shape {tuple(x.shape)}. It must have {dims} dimensions. Reshape it.",
                             shape=tuple(x.shape))
    arguments.check_kinds(name, y.dtype, b.dtype, "int32", "Y", "indices")
    if w.dtype != "float32":
        raise DTypeError(f"{name}: weights are {w.dtype}. They must be float32. Convert them.", dtype=w.dtype)
    if y.shape != (tables.capacity, b.shape[1]) or b.shape[0] != tables.mine or tuple(w.shape) != routes.shape:
        raise ShapeError(f"{name}: Y {tuple(y.shape)}, B {tuple(b.shape)} and weights {tuple(w.shape)} do not fit {tables.capacity} rows, "
                         f"{tables.mine} experts and {routes.shape} slots of this rank. Pass what belongs to the dispatch.")
    if w.shape[1] > 1 and w.strides[1] != 4 or w.shape[0] > 1 and w.strides[0] != 4 * w.shape[1]:
        raise LayoutError(f"{name}: weights have strides {tuple(w.strides)}. They must be contiguous. Pass a copy.")
    arguments.check_rows(name, "Y", y.shape, y.strides, y.dtype)
    return y, b, w, arguments.check_out(name, world, out, y.dtype, (w.shape[0], b.shape[2])), _columns(name, b)


__all__ = ["combine"]
