"""Parts on their way up and down a binary tree of nodes: few messages in a row, whatever the number of nodes."""

from .cuts import tree

__all__ = ["by_tree", "handed_down", "summed_up"]

#: Seconds of one more message of an exchange, seconds of a step of the tree, bytes per second of a rank: those of InfiniBand in
#: ``tuning.scale``, where they have sources.
MESSAGE_S, STEP_S, RATE = 5e-7, 6e-6, 46e9


def by_tree(nodes, nbytes):
    """Whether a part of so many bytes is better combined up and handed down the tree than exchanged directly, with every other node."""
    steps, doubled = 2 * (nodes - 1).bit_length() * STEP_S, 2 * nbytes / RATE
    return steps + doubled < 2 * (STEP_S + (nodes - 2) * MESSAGE_S)


def summed_up(phases, sums, mine, cuts, op, home, chunk):
    """Combine what all nodes have on its way to node ``home``. A generator that yields where it waits for other nodes.

    Args:
        sums: this rank's part, interval ``mine`` of the whole; on ``home`` it becomes the result. cuts: for every node, those of its ranks.
    """
    memory = phases.memory
    parent, children = tree(phases.nodes, home, phases.here)
    rooms = {child: memory.room(f"from child {i}", sums.size, chunk) for i, child in enumerate(children)}
    if children:
        receives = [item for child, room in rooms.items() for item in phases.meets(room, mine, cuts[child], child)]
        wait = phases.exchange(f"chunk {chunk}, up to {phases.here}", [], receives)
        yield
        wait()
        memory.combine(sums, [sums if node == phases.here else rooms[node] for node in sorted([*children, phases.here])], op)
    if parent is not None:
        wait = phases.exchange(f"chunk {chunk}, up to {parent}", phases.meets(sums, mine, cuts[parent], parent), [])
        yield
        wait()


def handed_down(phases, held, mine, cuts, home, chunk):
    """Give every node what ``home`` has, in ``held``. As :func:`summed_up`; returns a function that waits until this node's children
    have it, None without any."""
    parent, children = tree(phases.nodes, home, phases.here)
    if parent is not None:
        wait = phases.exchange(f"chunk {chunk}, down from {parent}", [], phases.meets(held, mine, cuts[parent], parent))
        yield
        wait()
    if not children:
        return None
    sends = [item for child in children for item in phases.meets(held, mine, cuts[child], child)]
    return phases.exchange(f"chunk {chunk}, down from {phases.here}", sends, [])
