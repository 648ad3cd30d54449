"""The NumPy definitions of the collectives: function(every rank's x, rank, arguments) of that rank's result, None for none."""

import numpy as np

__all__ = ["DEFINITIONS", "reduced"]

_OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


def reduced(xs, op="sum"):
    """Combined in float32, or in integers, and rounded once."""
    return _OPS[op].reduce([x.astype(np.int64 if x.dtype.kind == "i" else np.float32) for x in xs]).astype(xs[0].dtype)


def _part(x, size, rank, axis):
    return np.split(x, size, axis)[rank]


DEFINITIONS = {
    "all_reduce": lambda xs, r, op="sum": reduced(xs, op),
    "all_gather": lambda xs, r, axis=0: np.concatenate(xs, axis),
    "reduce_scatter": lambda xs, r, op="sum", axis=0: _part(reduced(xs, op), len(xs), r, axis),
    "all_to_all": lambda xs, r, scatter_axis, gather_axis: np.concatenate([_part(x, len(xs), r, scatter_axis) for x in xs], gather_axis),
    "broadcast": lambda xs, r, root=0: xs[root],
    "reduce": lambda xs, r, op="sum", root=0: reduced(xs, op) if r == root else None,
    "gather": lambda xs, r, root=0, axis=0: np.concatenate(xs, axis) if r == root else None,
    "scatter": lambda xs, r, root=0, axis=0: _part(xs[root], len(xs), r, axis),
    "send_recv": lambda xs, r, pairs: next((xs[s] for s, d in pairs if d == r), None),
}
