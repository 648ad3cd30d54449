"""moe_layer on pretended nodes: exact results, and every token crosses at most once to each node."""

import numpy as np
import pytest

from pknumba import World, errors, moe_layer

from ..kernels.experts import Problem


@pytest.mark.parametrize("ranks, node_size, shape", [(4, 2, (20, 2, 7, 40, 48, 24)), (3, 1, (7, 3, 5, 9, 17, 8)),
                                                     (4, 2, (4, 1, 2, 8, 8, 8))])
def test_values_and_bytes(ranks, node_size, shape):
    """Experts fewer than ranks, and not a multiple of them; indices that are no expert's; new values in the same arrays."""
    problems = [Problem(10 * ranks + i, ranks, *shape, exact=True) for i in range(2)]
    tokens, choices, experts, h, _, n = shape
    nodes = ranks // node_size

    def main(world):
        mine = [x.copy() for x in problems[0].mine(world.rank)[:3]]
        for number in range(3):
            problem = problems[number % 2]
            for array, values in zip(mine, problem.mine(world.rank)):
                array[...] = values
            before = world.across.engine.sent
            out = moe_layer(world, *mine, *problem.mine(world.rank)[3:], activation="relu", experts=experts)
            problem.check(world.rank, out, "relu", f"call {number}")
        return world.across.engine.sent - before
    with World.local(ranks, executor="interpreter", node_size=node_size) as world:
        sent = sum(world.run(main))
    homes = np.concatenate([[r // node_size] * len(part) for r, part in enumerate(np.array_split(np.arange(experts), ranks))])
    crossing = sum(len({homes[e] for e in row if 0 <= e < experts} - {rank // node_size})
                   for rank, table in enumerate(problems[0].indices) for row in table)
    token = h * 2 + choices * 8 + n * 2                 # there with its indices and weights, and its sum back
    assert sent == crossing * token + ranks * (nodes - 1) * 4


def test_real_numbers_stay_within_their_bound():
    problem = Problem(3, 4, 30, 2, 8, 72, 40, 56)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        out = moe_layer(world, x, indices, weights, w1, w2, activation="silu")
        value, bound = bounds[world.rank]
        assert (abs(out.astype("f8") - value) <= bound + 2.0**-8 * spread[world.rank]).all()
        return True

    from ..kernels.experts import layer
    bounds, spread = [], []
    for rank in range(4):
        mine = problem.x[rank], problem.indices[rank], problem.weights[rank]
        bounds.append(layer(*mine, problem.w1, problem.w2, "silu"))
        halves = [layer(mine[0], np.where(mine[1] // 4 == node, mine[1], -1), mine[2], problem.w1, problem.w2, "silu")[0]
                  for node in range(2)]
        spread.append(sum(map(abs, halves)))                    # what each node gives is rounded once more
    with World.local(4, executor="interpreter", node_size=2) as world:
        assert world.run(main) == [True] * 4


def test_what_nodes_cannot_share():
    problem = Problem(0, 3, 6, 1, 3, 8, 8, 8)

    def main(world):
        with pytest.raises(errors.ShapeError, match="ranks are 2 on node local.0, 1 on node local.1"):
            moe_layer(world, *problem.mine(world.rank))
        return True
    with World.local(3, executor="interpreter", node_size=2) as world:
        assert world.run(main) == [True] * 3

    def limited(world):
        with pytest.raises(errors.UnsupportedError, match="capacity 5"):
            moe_layer(world, *problem.mine(world.rank), capacity=5)
        return True
    with World.local(2, executor="interpreter", node_size=1) as world:
        assert world.run(limited) == [True] * 2
