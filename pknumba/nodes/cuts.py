"""Who has which part of what: intervals, and where those of two nodes overlap."""

from bisect import bisect_right

__all__ = ["chunks", "equal", "overlaps", "owned", "spread", "tree"]


def equal(n, parts):
    """``parts`` intervals (first, end) of 0 .. n that are all as long as the first, except where n ends."""
    length = -(-n // parts)
    return [(min(i * length, n), min((i + 1) * length, n)) for i in range(parts)]


def spread(n, parts):
    """The intervals of ``numpy.array_split``: the first n % parts are one longer than the others."""
    length, extra = divmod(n, parts)
    starts = [i * length + min(i, extra) for i in range(parts + 1)]
    return list(zip(starts, starts[1:]))


def overlaps(interval, cuts):
    """(number, first, end) of every part of ``cuts`` that shares something with the interval."""
    first, end = interval
    return [(i, max(first, a), min(end, b)) for i, (a, b) in enumerate(cuts) if max(first, a) < min(end, b)]


def owned(interval, cuts, unit):
    """Pieces (first, end, node that owns it, {node: number of the rank that has it}) of what one rank has.

    Every node has the whole, cut among its ranks as ``cuts[node]`` says. A piece lies in one part of each node, so that one rank of each
    can send it; nodes own equal amounts of every part.

    Args:
        unit: pieces begin at multiples of it, counted from where their part begins.
    """
    starts = [[a for a, _ in cut] for cut in cuts]
    edges = sorted({p for cut in starts for p in cut if interval[0] <= p < interval[1]} | set(interval))
    found = []
    for low, high in zip(edges, edges[1:]):
        holders = {node: _holder(cut, low) for node, cut in enumerate(cuts)}
        share = -(-(high - low) // len(cuts))
        step = -(-share // unit) * unit
        for node in range(len(cuts)):
            first, end = min(low + node * step, high), min(low + (node + 1) * step, high)
            if first < end:
                found.append((first, end, node, holders))
    return found


def _holder(cut, place):
    """Number of the part that a place lies in; empty parts have none."""
    i = bisect_right([a for a, _ in cut], place) - 1
    while cut[i][1] <= place:
        i -= 1
    return i


def chunks(n, most, step):
    """Intervals of 0 .. n of at most about ``most``, all but the last a multiple of ``step``."""
    length = max(most // step, 1) * step
    return [(i, min(i + length, n)) for i in range(0, n, length)]


def tree(nodes, root, node):
    """(parent or None, children) of a node in the binary tree of all nodes under ``root``."""
    place = (node - root) % nodes
    children = [(child + root) % nodes for child in (2 * place + 1, 2 * place + 2) if child < nodes]
    return (((place - 1) // 2 + root) % nodes if place else None), children
