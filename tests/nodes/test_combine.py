"""The kernel that combines what came from several nodes, and the intervals that say who has what."""

import numpy as np
import pytest

from pknumba import World, lowering
from pknumba.config import CommConfig
from pknumba.errors import WorldError
from pknumba.nodes.combine import Combine
from pknumba.nodes.cuts import chunks, equal, overlaps, owned, spread, tree
from pknumba.nodes.memory import Memory
from pknumba.runtime.nodes import Layout

from ..kernels.collectives import DTYPES, numbers
from ..kernels.definitions import reduced


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype):
    """Several terms at addresses of no alignment; in a target of its own and in one of the terms; nothing around it is touched."""
    def main(world):
        memory, rng = Memory(world, dtype, 0), np.random.default_rng(world.rank)
        for n, op in ((1, "sum"), (7, "max"), (64, "min"), (1001, "sum")):
            around = [numbers(rng, n + 9, dtype) for _ in range(3)]
            terms = [a[i + 1:i + 1 + n] for i, a in enumerate(around)]
            want, target = reduced(terms, op), np.zeros(n + 2, DTYPES[dtype])
            memory.combine(target[1:-1], terms, op)
            assert np.array_equal(target[1:-1], want) and target[0] == target[-1] == 0
            before = [a.copy() for a in around]
            memory.combine(terms[1], terms, op)
            before[1][2:2 + n] = want
            assert all(np.array_equal(a, b) for a, b in zip(around, before))
        return True
    with World.local(3, executor="interpreter", node_size=2) as world:
        assert world.run(main) == [True] * 3


@pytest.mark.ptx
@pytest.mark.parametrize("fields", [dict(unroll=4), dict(unroll=1, dtype="float32"), dict(unroll=4, dtype="int32", op="max")], ids=str)
def test_cubin(fields):
    cubin, record = lowering.build(Combine.plan(CommConfig(**fields)))
    assert (record["spill"], record["stack"], record["notices"]) == (0, 0, []) and record["counters"] == [] or not record["counters"]
    assert len(cubin) > 1000


def test_layouts():
    layout = Layout([(0, 1), (2,), (3, 4, 5)], ["alpha", "beta", "alpha"])
    assert layout.names == ["alpha+0", "beta", "alpha+1"] and layout.sizes == (2, 1, 3) and not layout.even and layout.common == 6
    assert layout.home[4] == (2, 1) and layout.rank_of(2, 1) == 4
    part = layout.part([4, 3, 1])
    assert part.groups == ((0, 1), (2,)) and part.names == ["alpha+1", "alpha+0"]
    with pytest.raises(WorldError, match=r"node a has ranks 0, 2\. The ranks of a node are consecutive\. .*--map-by slot"):
        Layout([(0, 2), (1, 3)], ["a", "b"])


def test_intervals():
    assert equal(10, 4) == [(0, 3), (3, 6), (6, 9), (9, 10)] and spread(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert equal(2, 4) == [(0, 1), (1, 2), (2, 2), (2, 2)] and equal(0, 2) == [(0, 0), (0, 0)]
    assert overlaps((2, 7), equal(10, 4)) == [(0, 2, 3), (1, 3, 6), (2, 6, 7)]
    assert chunks(100, 30, 8) == [(0, 24), (24, 48), (48, 72), (72, 96), (96, 100)] and chunks(5, 2, 8) == [(0, 5)]


@pytest.mark.parametrize("n", [1, 7, 96, 1000])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (2, 3, 4), (1, 1, 1), (8,) * 5], ids=str)
def test_every_element_has_one_owner_and_a_holder_on_every_node(sizes, n):
    cuts = [equal(n, size) for size in sizes]
    owners = np.zeros((len(sizes), n), int)
    for node, cut in enumerate(cuts):
        for local, interval in enumerate(cut):
            at = interval[0]
            for a, b, owner, holders in owned(interval, cuts, 8):
                assert a == at and b > a and all(cuts[k][holder][0] <= a and b <= cuts[k][holder][1] for k, holder in holders.items())
                assert holders[node] == local
                owners[node, a:b], at = owner, b
            assert at == interval[1]
    assert (owners == owners[0]).all(), "all nodes agree"


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_trees(nodes):
    for root in range(nodes):
        found = {node: tree(nodes, root, node) for node in range(nodes)}
        assert [node for node, (parent, _) in found.items() if parent is None] == [root]
        assert all(node in found[parent][1] for node, (parent, _) in found.items() if parent is not None)
        assert sum(len(children) for _, children in found.values()) == nodes - 1 and max(len(c) for _, c in found.values()) <= 2
