"""ring_attention on pretended nodes: within the bound of one node, and no shard crosses more than once, or where nobody sees it."""

import numpy as np
import pytest

from pknumba import World, errors, ring_attention
from pknumba.kernels.ring_attention import ring_rows
from pknumba.runtime.nodes import merging

from ..kernels.attending import definition, heads, part


@pytest.mark.parametrize("causal, zigzag", [(False, None), (True, None), (True, False)])
@pytest.mark.parametrize("ranks, node_size", [(4, 2), (3, 1)])
def test_values_and_bytes(ranks, node_size, causal, zigzag):
    rows, width, pairs, nodes = 16 * ranks, 64, 2, ranks // node_size
    q, k, v = heads(np.random.default_rng(ranks), 1, rows, rows, 4, pairs, width)
    want, turned = definition(q, k, v, causal), causal if zigzag is None else zigzag

    def main(world):
        mine = ring_rows(rows, ranks, world.rank, turned)
        parts = [np.ascontiguousarray(x[:, :, mine].swapaxes(1, 2)).swapaxes(1, 2) if x is q else x[:, :, mine] for x in (q, k, v)]
        expected, out = part(want, mine), np.empty(parts[0].shape, parts[0].dtype)
        for _ in range(2):
            o, lse = ring_attention(world, *parts, causal=causal, zigzag=zigzag, out=out)
            assert o is out and (abs(o.astype("f8") - expected.o) <= expected.o_bound).all()
            assert (abs(lse - expected.lse) <= expected.lse_bound).all()
        return world.across.engine.sent / 2
    with World.local(ranks, executor="interpreter", node_size=node_size) as world:
        sent = sum(world.run(main))
    shard = 2 * pairs * 16 * width * 2                              # K and V of a rank
    shards = ranks * (nodes - 1)                                    # each to every other node
    assert sent == shard * shards * (3 / 4 if causal and turned else 1 / 2 if causal else 1)


def test_shares_that_nodes_cannot_have():
    def main(world):
        q = np.ones((1, 1, 7, 64), "float16")
        with pytest.raises(errors.ShapeError, match="Every rank has as many, and a multiple of 2"):
            ring_attention(world, q, q, q, causal=True)
        with pytest.raises(errors.ShapeError, match="20 in all"):
            ring_attention(world, q, q, q, rows=20)
        return True
    with World.local(2, executor="interpreter", node_size=1) as world:
        assert world.run(main) == [True] * 2


def test_merging_rows_that_see_nothing():
    o, lse = np.ones((1, 1, 3, 2), "float16"), np.array([[[0.0, -np.inf, -np.inf]]], "float32")
    more = 3 * o, np.array([[[np.log(3), 1.0, -np.inf]]], "float32")
    total = merging.begin(o, lse.copy())
    merging.add(total, more, 0)
    assert np.allclose(total[0][0, 0, :2], [[2.5, 2.5], [3, 3]])
    assert np.allclose(total[1][0, 0, :2], [np.log(4), 1]) and total[1][0, 0, 2] == -np.inf
