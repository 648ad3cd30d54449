"""Lists of tasks: which block of a launch has which, where tasks are unequal and the host knows how long each takes."""

import heapq

#: Tasks that are listed at most. Among more, unequal lengths even out.
MOST_LISTED = 1 << 17


def least_loaded(costs, blocks):
    """Tasks in order, each given to the block that has least to do so far: what blocks would do that took the next task when they are
    ready for it, and the same in every call.

    Args:
        costs: what each task takes, in any unit.
        blocks: how many blocks there are.

    Returns: (what the block takes that has most, int32 array (blocks, turns): the tasks of each block in their order, then -1). Graham's
        list scheduling: tasks that get shorter towards the end leave little uneven.
    """
    import numpy as np
    lists, loads = [[] for _ in range(blocks)], [(0, block) for block in range(blocks)]
    for task, cost in enumerate(costs):
        load, block = loads[0]
        lists[block].append(task)
        heapq.heapreplace(loads, (load + cost, block))
    table = np.full((blocks, max(map(len, lists))), -1, np.int32)
    for row, tasks in zip(table, lists):
        row[:len(tasks)] = tasks
    return max(load for load, _ in loads), table


def in_equal_groups(costs, lines, unit, together, blocks):
    """The same tasks of several lines, whose groups share what they read: in equal groups of lines, as few as may be, or up to three more
    where that leaves less uneven. A group's lines take turns with each task.

    Args:
        costs: what the tasks of a line take, in their order.
        lines: how many there are. unit: a group has a multiple of so many. together: lines of a group at most, and at least ``unit``.
        blocks: how many blocks there are.

    Returns: (lines of a group, the table of ``least_loaded``).
    """
    few, found = -(-lines // together), {}
    for groups in range(few, few + 4):
        size = min(lines, -(-lines // (groups * unit)) * unit)
        heights = [min(size, lines - first) for first in range(0, lines, size)]
        found[size] = least_loaded([cost for height in heights for cost in costs for _ in range(height)], blocks)
    size = min(found, key=lambda n: found[n][0])
    return size, found[size][1]


__all__ = ["in_equal_groups", "least_loaded", "MOST_LISTED"]
