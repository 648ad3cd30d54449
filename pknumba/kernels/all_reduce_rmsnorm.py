"""All-reduce + residual + RMSNorm: h = residual + sum over ranks of x_r, out = h / sqrt(mean(h * h) + eps) * weight, row by row."""

from ..config import NormConfig
from ..errors import ConfigError, DTypeError
from ..primitives import copy_box, i32, mod, normalise, over_warps, reduce_box, reduce_boxes, send_box, squares
from ..primitives.packets import PIECE, UNITS
from ..templates import Comm, communicate, counted_rows, meeting_rows, repeated
from ..templates.agreement import links
from ..templates.collected import like, rows_of_rank
from ..templates.comm import SMALL, sent_at_once
from ..templates.fast import is_symmetric
from ..templates.geometry import Form, Rows
from ..tiles import Tile, shared


class AllReduceRmsNorm(Comm):
    """Two shots: pieces of each row are combined by their owners, who add the residual and write h to all ranks; each rank then
    normalises its copy."""

    operator, config, in_place, most, combines = "all_reduce_rmsnorm", NormConfig, True, 4, True
    tensors, symmetric = ("X", "S", "T", "residual", "H", "weight", "Y"), ("S", "T")
    numbers = {"box": 5, "pieces": 1, "rows": 1, "owned": 1}

    @staticmethod
    def shared(cfg):
        return shared(sums=Tile((cfg.warps, 8, 8), "float32", 32))

    @staticmethod
    def copy_in(cfg, g, s, task):
        """A row of this rank to symmetric memory."""
        for piece in range(task.part, g.pieces, cfg.warps):
            copy_box(g.S, g.X, i32(piece), g.box, cfg.unroll, task.id, task.id)

    @staticmethod
    def communicator(cfg, g, s, task):          # every world_size-th piece is this rank's, in each row from another one on
        first = mod(i32(task.id + g.rank), g.world_size)
        for mine in range(task.part, g.owned, cfg.warps):
            piece = i32(first + g.world_size * mine)            # the last may lie beyond the row: nothing is moved then
            reduce_box(g.T, g.S, piece, g.box, cfg.unroll, "sum", task.id, task.id, True, False, g.residual, False, cfg.at_once)

    @staticmethod
    def finish(cfg, g, s, task):
        """A row of h, of which this warp has its pieces, and the block all."""
        total = over_warps(s.sums, task.part, squares(g.T, g.box, task.id, task.part, cfg.warps, cfg.unroll))
        if cfg.copy_out:
            normalise(g.Y, g.T, g.weight, g.box, task.id, task.part, cfg.warps, cfg.unroll, total, cfg.eps, g.H)
        else:
            normalise(g.Y, g.T, g.weight, g.box, task.id, task.part, cfg.warps, cfg.unroll, total, cfg.eps)

    @classmethod
    def driver(kernel, role):
        """Whole rows."""
        return lambda communicate, _: meeting_rows(kernel, communicate)

    @classmethod
    def form(kernel, size, shape, eps):
        """Every rank has all of it."""
        if not isinstance(eps, (int, float)) or not 0 <= eps < float("inf"):
            raise ConfigError(f"{kernel.operator}: eps = {eps!r}. It is added to a mean of squares. Pass a number that is not negative.")
        return Form(shape, shape)

    @classmethod
    def others(kernel, world, x, y, given):
        """Residual, weight and h."""
        if x.dtype == "int32":
            raise DTypeError(f"{kernel.operator}: x is int32. A norm is of floating-point numbers. Convert it first.", dtype=x.dtype)
        return rows_of_rank(kernel, world, x, y, given)

    @classmethod
    def box(kernel, call, found):
        """Rows."""
        return Rows(tuple(found.x.shape), call.dtype)

    @classmethod
    def work(kernel, call):
        """Units of each owner."""
        return call.box.numbers[-1] * call.box.rows // call.world.size

    @classmethod
    def variant(kernel, call, cfg):
        """One shot for few rows."""
        cfg = cfg.replace(eps=float(call.arguments["eps"]))
        few = call.form_bytes * call.box.rows * call.world.size <= sent_at_once(call.world)
        chosen = OneShotRmsNorm if cfg.algorithm == "one-shot" or few and cfg.algorithm == "auto" else kernel
        return super(AllReduceRmsNorm, chosen).variant(call, cfg.replace(algorithm="auto"))

    @classmethod
    def fitted(kernel, call, cfg, many):
        """Small blocks, several on an SM, where there are rows enough: while some wait or read, others write."""
        small = call.box.rows >= call.least_sms() if links(call.world) else many
        if not small:
            return cfg.replace(unroll=1, at_once=kernel.on_the_way(call, 1))
        unroll = 4 if links(call.world) and call.world.size == 2 else 2
        return cfg.replace(unroll=unroll, warps=SMALL, at_once=kernel.on_the_way(call, unroll) if links(call.world) else 4)

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric, residual, weight, h_symmetric):
        """Ordinary arrays are not where peers read and write."""
        return dict(copy_in=not x_symmetric, copy_out=not h_symmetric)

    @classmethod
    def values(kernel, call):
        """Pieces of a row, and how many of them a rank owns at most."""
        pieces = -(-call.box.numbers[-1] // (32 * call.cfg.unroll))
        return dict(box=call.box.numbers, pieces=pieces, rows=call.box.rows, owned=-(-pieces // call.world.size))

    @classmethod
    def blocks(kernel, call, numbers):
        """A row each, as far as there is room: as ``Comm.blocks``. Over links two rows at most, though that take more blocks: some then
        read and write memory while others wait for links."""
        rows, most = numbers["rows"], kernel.most_blocks(call)
        if links(call.world) and call.cfg.warps <= SMALL:
            most = max(call.least_sms() * 16 // call.cfg.warps, rows // 2)
        return min(rows, most)

    @classmethod
    def views(kernel, call, x, out, y):
        """T, where h is made, is the caller's array or memory of the world; S, where terms are read, is x or memory of the world."""
        views = kernel.own_views(call, y)
        at, (_, _, (h, info)) = call.box.layout, call.others
        t = call.staging() if call.cfg.copy_out else call.shared(h, at(info.strides))
        s = call.staging() if call.cfg.copy_in else call.shared(x, at(call.x.strides))
        return dict(**views, S=s, T=t)

    @classmethod
    def own_views(kernel, call, y):
        """What only this rank reads and writes."""
        residual, weight, h = (info for _, info in call.others)
        rows = {"X": call.x, "residual": residual, "H": h, "Y": y}
        views = {n: call.private(info, call.box.layout(info.strides if info else call.box.strides)) for n, info in rows.items()}
        return {**views, "weight": call.private(weight, ((0, 0, 0), 0))}


class OneShotRmsNorm(AllReduceRmsNorm):
    """Every rank sends its rows to all, in packets that need no signal, and makes h by itself."""

    tensors, symmetric = ("X", "inbox", "residual", "H", "weight", "Y"), ("inbox",)
    counters, numbers = ("calls", "arrived"), {"box": 5, "pieces": 1, "rows": 1}

    @staticmethod
    def send(cfg, g, s, task):
        """A row of this rank."""
        for piece in range(task.part, g.pieces, cfg.warps):
            send_box(g.inbox, g.X, i32(piece), g.box, task.step, g.arrived, task.id, None, task.id, g.rows)

    @staticmethod
    def communicator(cfg, g, s, task):
        for piece in range(task.part, g.pieces, cfg.warps):
            reduce_boxes(g.H, g.inbox, g.X, i32(piece), g.box, task.step, g.arrived, "sum", task.id, task.id, g.rows, g.residual)

    @staticmethod
    def finish(cfg, g, s, task):
        """A row of h, in pieces as large as those that came: a lane reads what it wrote itself."""
        total = over_warps(s.sums, task.part, squares(g.H, g.box, task.id, task.part, cfg.warps, UNITS))
        normalise(g.Y, g.H, g.weight, g.box, task.id, task.part, cfg.warps, UNITS, total, cfg.eps)

    @classmethod
    def driver(kernel, role):
        """No handshake."""
        return lambda communicate, _: counted_rows(kernel, communicate)

    @classmethod
    def fitted(kernel, call, cfg, many):
        """As many warps as there are: a row is to be over soon."""
        return cfg

    @classmethod
    def copies(kernel, *symmetric):
        """Nothing is read or written by peers but the inbox."""
        return {}

    @classmethod
    def values(kernel, call):
        """Pieces of a row."""
        return dict(box=call.box.numbers, pieces=-(-call.box.numbers[-1] // PIECE), rows=call.box.rows)

    @classmethod
    def count(kernel, counter, size, blocks, pieces):
        """Calls of each block; flags of each source and piece."""
        return blocks if counter == "calls" else size * pieces

    @classmethod
    def views(kernel, call, x, out, y):
        """This rank's arrays and the inbox."""
        return dict(**kernel.own_views(call, y), inbox=call.inbox(call.box.rows))


@repeated("x", "out", "residual", "weight", "residual_out", result="out, residual_out")
def all_reduce_rmsnorm(world, x, residual, weight, *, eps=1e-6, out=None, residual_out=None, config=None, stream=None):
    """h = residual + sum over the ranks r of x_r; out = h / sqrt(mean(h * h, last axis) + eps) * weight; collective.

    What follows a layer that is split over ranks, in one launch. NumPy: ``h = (residual + sum(xs)).astype(dtype)``, and its norm.

    Args:
        world: World of this rank; every rank calls with arrays of one shape and dtype.
        x: (..., n) bfloat16, float16 or float32, contiguous or a SymmetricArray of this world; NumPy on the interpreter, else CuPy,
            torch or any CUDA array.
        residual: array like x, the same on every rank: a rank may use any rank's.
        weight: (n,) of the same dtype, the same on every rank.
        eps: number.
        out: array like x, possibly x itself; residual_out: array like x for h, possibly residual itself; made with x's library if None.
        config: NormConfig; chosen by size if None. stream: as in ``gemm``; to be passed where two streams work at once, since calls
            of one form share counters.

    Returns: (out, residual_out) (their ``local`` where they are symmetric). Terms are added in float32 in rank order, the residual
    last, and h is rounded once; its norm is taken of what is stored, in float32, and rounded once. h has the same bits on every
    rank. Few rows are sent to every rank at once, in packets that carry their own flags. Of more, pieces are combined by their
    owners; then x is copied into symmetric memory that the world keeps unless it is symmetric, and h is copied out of it unless
    residual_out is.

    Raises: ShapeError, DTypeError, LayoutError, ConfigError, WorldError, ContractError on every rank, before anything is
    launched; HangError if a rank does not come.
    """
    out, h = like(x) if out is None else out, like(x) if residual_out is None else residual_out
    normed = communicate(AllReduceRmsNorm, world, x, out, config, stream, (residual, weight, h), eps=eps)
    return normed, h.local if is_symmetric(h) else h
