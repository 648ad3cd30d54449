"""Lists of tasks: complete, in order, the same every time, and even."""

import numpy as np
import pytest

from pknumba.templates.lists import least_loaded


@pytest.mark.parametrize("seed", range(6))
def test_every_task_once_and_nobody_waits(seed):
    """Each block has its tasks in their order; a task begins when the first block is free, so that all are busy until the last begins."""
    rng = np.random.default_rng(seed)
    costs, blocks = rng.integers(1, 20, rng.integers(1, 200)).tolist(), int(rng.integers(1, 40))
    end, table = least_loaded(costs, blocks)
    tasks = [row[row >= 0].tolist() for row in table]
    assert sorted(sum(tasks, [])) == list(range(len(costs))) and all(row == sorted(row) for row in tasks)
    assert all((row[len(kept):] == -1).all() for row, kept in zip(table, tasks)) and table.shape[1] == max(map(len, tasks))
    loads = [sum(costs[t] for t in row) for row in tasks]
    assert end == max(loads) <= sum(costs) / blocks + max(costs), "Graham's bound"
    assert (least_loaded(costs, blocks)[1] == table).all()
