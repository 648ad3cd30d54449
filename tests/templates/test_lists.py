"""Lists of tasks: complete, in order, the same every time, and even."""

from types import SimpleNamespace

import numpy as np
import pytest

from pknumba import World, ring_rows
from pknumba.kernels import RingAttention, UlyssesAttention
from pknumba.templates.attending import Heads, cost_of
from pknumba.templates.lists import in_equal_groups, least_loaded
from pknumba.templates.ringing import RingCall
from pknumba.templates.ulysses import UlyssesCall
from pknumba.tiles import Task


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


@pytest.mark.parametrize("lines, unit, together", [(10, 2, 4), (16, 1, 2), (7, 7, 7), (5, 1, 1)])
def test_groups_of_lines(lines, unit, together):
    """Every task once, in groups of a multiple of what goes together, and no more lines than may be."""
    costs = [9, 4, 4, 1]
    size, table = in_equal_groups(costs, lines, unit, together, blocks=6)
    assert size <= together and size % unit == 0 and sorted(table[table >= 0].tolist()) == list(range(4 * lines))
    heights = [min(size, lines - first) for first in range(0, lines, size)]
    assert (table == least_loaded([cost for height in heights for cost in costs for _ in range(height)], 6)[1]).all()


#: Attention over ranks -> (kernel, its call, options).
SPREAD = {"ring": (RingAttention, RingCall, dict(zigzag=True)), "ring of pieces in order": (RingAttention, RingCall, dict(zigzag=False)),
          "ulysses": (UlyssesAttention, UlyssesCall, {})}


@pytest.mark.parametrize("name", SPREAD)
def test_causal_attention_over_ranks_is_even(name):
    """Of two H200s and 16 heads of 32,768 rows: tiles take the keys that they see, and no block much more than the mean. Tiles in rounds,
    every other one backwards, left the busiest block of a ring's first rank 29 % above it, and Ulysses' 25 %."""
    (kernel, call_of, options), rows = SPREAD[name], 16384

    class Watched(call_of):
        def _order(self, cfg, numbers):
            order = super()._order(cfg, numbers)
            self.known = cfg, SimpleNamespace(**numbers, rank=self.world.rank, world_size=2)
            return order

    def main(world):
        q, k, v, out = (np.zeros((1, 16, rows, 128), "float16") for _ in range(4))
        lse = kernel is RingAttention and np.zeros(q.shape[:3], "float32")
        call = Watched(kernel, world, Heads(q, k, v, out, lse), None, None, causal=True, rows=None, **options)
        return call.order, *call.known

    for rank, (order, cfg, g) in enumerate(World.local(2, executor="interpreter", num_sms=132, races=False).run(main)):
        costs = [cost_of(kernel, cfg, g, task) for task in range(g.tasks)]
        assert sorted(order[order >= 0].tolist()) == list(range(g.tasks)) and g.listed and order.shape == (g.blocks, g.turns)
        loads = [sum(costs[task] for task in row if task >= 0) for row in order]
        assert max(loads) < 1.05 * np.mean(loads)
        assert g.together * 2 * rows * 512 <= 32 << 20, "K and V of heads that are walked together fit into the cache"
        mine = ring_rows(2 * rows, 2, rank, options["zigzag"]) if kernel is RingAttention else np.arange(2 * rows)
        first = np.array([kernel.locate(cfg, g, Task(task, 0, 0, 0, 0))[2] for task in range(g.tasks)])
        last = np.minimum(first[:, None] + [63, 127, 191], len(mine) - 1)
        assert np.allclose(costs, (mine[last] // 64 + 1).sum(1) + 3 * 1.3), "what the three consumers of a tile see, and its ends"
