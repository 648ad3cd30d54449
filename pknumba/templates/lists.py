"""Lists of tasks: which block of a launch has which, where tasks are unequal and the host knows how long each takes."""

import heapq

#: Tasks that are listed at most. Among more, unequal lengths even out.
MOST_LISTED = 1 << 14


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


__all__ = ["least_loaded", "MOST_LISTED"]
