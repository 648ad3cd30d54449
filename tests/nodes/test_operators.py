"""Operators on pretended nodes of one process: results equal those of one node, few bytes cross, kernels and exchanges are interleaved."""

import numpy as np
import pytest

import pknumba
from pknumba import World
from pknumba.errors import ConfigError, ShapeError, UnsupportedError, WorldError

from ..kernels.collectives import TOY, play
from ..kernels.harness import schedule
from ..kernels.definitions import DEFINITIONS
from .cases import CASES, EXCHANGES, collective, everything, products


def run(ranks, main, node_size, **options):
    with World.local(ranks, executor="interpreter", node_size=node_size, **options) as world:
        return world.run(main)


@pytest.mark.parametrize("ranks, node_size", [(4, 2), (4, 1), (4, 3), (8, 2), (8, 3)])
def test_everything(ranks, node_size, monkeypatch):
    """Nodes of 1, 2 and 3 ranks, uneven too, with chunks of a few elements."""
    monkeypatch.setenv("PKNUMBA_CHUNK_BYTES", "512")
    if ranks == 4:
        run(ranks, everything, node_size, **schedule(node_size))
    else:
        run(ranks, lambda world: products(world, 67, 24, 16), node_size)


@pytest.mark.parametrize("kinds", [("symmetric", "none"), ("ordinary", "symmetric"), ("symmetric", "same"), ("ordinary", "same")], ids=str)
def test_arrays_of_all_kinds(kinds, monkeypatch):
    """Ordinary and symmetric arrays, results in place; ranks that come late."""
    monkeypatch.setenv("PKNUMBA_CHUNK_BYTES", "256")
    for i, (name, arguments, shape) in enumerate((*CASES, *EXCHANGES)):
        if kinds[1] == "same" and name not in ("all_reduce", "reduce", "broadcast"):
            continue
        definition = DEFINITIONS[name]
        wanted = [definition([np.zeros(shape, np.float32)] * 4, r, **arguments) for r in range(4)]
        play(4, lambda world, x, out: getattr(pknumba, name)(world, x, out=out, config=TOY, **arguments),
             lambda xs, r: definition(xs, r, **arguments), shape, next(w.shape for w in wanted if w is not None), calls=2, kinds=kinds,
             skew=7, seed=i, node_size=2)


#: Operator -> bytes that must cross between nodes, of n nodes of g ranks, for x of b bytes on each rank. Less is not possible: every node
#: needs what it lacks, and of a sum every node but one must give what it has.
LEAST = {
    "all_reduce": lambda n, g, b: 2 * (n - 1) * b,
    "reduce": lambda n, g, b: (n - 1) * b,
    "broadcast": lambda n, g, b: (n - 1) * b,
    "reduce_scatter": lambda n, g, b: (n - 1) * b,
    "all_gather": lambda n, g, b: n * (n - 1) * g * b,
    "all_to_all": lambda n, g, b: n * g * (n - 1) * b // n,
}


@pytest.mark.parametrize("ranks, node_size", [(4, 2), (6, 2), (6, 3), (3, 1)])
def test_as_few_bytes_cross_as_possible(ranks, node_size, monkeypatch):
    monkeypatch.setenv("PKNUMBA_CHUNK_BYTES", "1024")
    nodes, shape = ranks // node_size, (ranks * 20, 7)

    def main(world):
        found = {}
        for name in LEAST:
            before = world.across.engine.sent
            more = dict(scatter_axis=0, gather_axis=1) if name == "all_to_all" else dict(root=1) if name in ("reduce", "broadcast") else {}
            getattr(pknumba, name)(world, np.ones(shape, np.float32), config=TOY, **more)
            found[name] = world.across.engine.sent - before
        return found

    said = run(ranks, main, node_size)
    sent = {name: sum(one[name] for one in said) for name in LEAST}
    assert sent == {name: least(nodes, node_size, 4 * shape[0] * shape[1]) for name, least in LEAST.items()}


def test_uneven_nodes_send_no_more(monkeypatch):
    """One node of one rank, one of three: what crosses is the same."""
    def main(world):
        before = world.across.engine.sent
        pknumba.all_reduce(world, np.ones(1000, np.float32))
        return world.across.engine.sent - before
    assert sum(run(4, main, 3)) == 2 * 4000


def test_many_nodes_and_few_bytes_go_by_a_tree(monkeypatch):
    """Few exchanges in a row; the result is exact on uneven nodes too, and no more crosses."""
    from pknumba.nodes import trees
    assert trees.by_tree(1024, 1 << 10) and not trees.by_tree(1024, 64 << 20) and not trees.by_tree(8, 1 << 10)
    monkeypatch.setattr(trees, "MESSAGE_S", 1.0)
    monkeypatch.setenv("PKNUMBA_CHUNK_BYTES", "512")

    def main(world):
        collective(world, "all_reduce", {}, (333,), "float32")
        before = world.across.engine.sent
        pknumba.all_reduce(world, np.ones(333, np.float32))
        return world.across.engine.sent - before
    for ranks, node_size in ((7, 2), (6, 1)):
        nodes = -(-ranks // node_size)
        assert sum(run(ranks, main, node_size)) == 2 * (nodes - 1) * 4 * 333


def test_products_send_no_more_than_their_sums():
    def main(world):
        A, B, sent = np.ones((64, 32), "float16"), np.ones((32, 48), "float16"), []
        for operator in (pknumba.gemm_all_reduce, pknumba.gemm_reduce_scatter, pknumba.all_gather_gemm):
            before = world.across.engine.sent
            operator(world, A, B)
            sent.append(world.across.engine.sent - before)
        return sent
    total = np.sum(run(4, main, 2), 0)
    assert total.tolist() == [2 * 64 * 48 * 2, 64 * 48 * 2, 2 * 2 * 64 * 32 * 2]


def test_kernels_run_while_data_travel(monkeypatch):
    """When the kernel of a chunk begins, the exchange of the one before it is under way; the same on every rank."""
    monkeypatch.setenv("PKNUMBA_CHUNK_BYTES", "4096")
    from pknumba import kernels
    from pknumba.nodes.phases import Phases

    def main(world):
        log = logs.setdefault(world.rank, [])
        world.log = log
        pknumba.all_reduce(world, np.ones(4096, np.float32), config=TOY)
        return log

    logs, exchange = {}, Phases.exchange

    def logged(phases, step, sends, receives):
        phases.world.log.append(("start", step))
        wait = exchange(phases, step, sends, receives)

        def waited():
            wait()
            phases.world.log.append(("end", step))
        return waited

    def kernel(world, *arguments, original=kernels.reduce_scatter, **options):
        logs[2 * world.group + world.rank].append(("kernel", "reduce_scatter"))
        return original(world, *arguments, **options)

    def numbered(world):
        world.node.group = world.here[0]
        return main(world)

    monkeypatch.setattr(Phases, "exchange", logged)
    monkeypatch.setattr(kernels, "reduce_scatter", kernel)
    found = run(4, numbered, 2)
    assert found[0] == found[1] == found[2] == found[3]
    flight, overlapped = set(), 0
    for what, step in found[0]:
        flight = flight | {step} if what == "start" else flight - {step}
        overlapped += what == "kernel" and bool(flight)
    assert overlapped == sum(what == "kernel" for what, _ in found[0]) - 1 and overlapped >= 3


def test_sums_stay_within_their_bound():
    """bfloat16 sums of random numbers: rounded once in each node, once in the end; with one rank a node as on one node, bit for bit."""
    rng = np.random.default_rng(0)
    import ml_dtypes
    xs = [rng.standard_normal(4000).astype(ml_dtypes.bfloat16) for _ in range(4)]

    def main(world):
        return pknumba.all_reduce(world, xs[world.rank])
    with World.local(4, executor="interpreter") as world:
        one = world.run(main)[0]
    two, four = run(4, main, 2), run(4, main, 1)
    exact = sum(x.astype(np.float64) for x in xs)
    partial = abs(xs[0].astype("f8") + xs[1].astype("f8")) + abs(xs[2].astype("f8") + xs[3].astype("f8"))
    u = 2.0**-8
    bound = u * partial * (1 + u) + u * abs(exact) + 2.0**-20 * sum(abs(x.astype("f8")) for x in xs)
    assert all(np.array_equal(two[0], r) for r in two) and all(np.array_equal(one, r) for r in four)
    assert (abs(two[0].astype("f8") - exact) <= bound).all() and not np.array_equal(two[0], one)


def test_worlds_know_their_nodes():
    def main(world):
        assert world.spans and world.node.size == (2 if world.rank < 4 else 1) and world.node.node is world.node
        assert world.layout.groups == ((0, 1), (2, 3), (4,))
        assert world.layout.say([1, 2, 3]) == "rank 1 on node local+0, ranks 2 and 3 on node local+1"
        assert world.across.ranks == ((0, 2, 4) if world.rank % 2 == 0 else (1, 3)) and world.across.ranks[world.across.rank] == world.rank
        array = world.symmetric((3, 5), "float32")
        array.local[...] = world.rank
        world.barrier()
        mates = world.layout.groups[world.here[0]]
        assert [array.peer(r)[2, 4] for r in mates] == list(mates)
        with pytest.raises(WorldError, match=r"Memory is seen inside a node\. This one is local"):
            array.peer((mates[0] + 2) % 5)
        part = world.split([3, 1, 0])
        if part is not None:
            assert part.spans and part.layout.groups == ((0,), (1, 2)) and part.allgather(world.rank) == [3, 1, 0]
            assert pknumba.all_reduce(part, np.full(9, float(world.rank), "float32"))[0] == 4
        inner = world.split([0, 1])
        return inner is None or not inner.spans and inner.allgather(world.rank) == [0, 1]
    assert run(5, main, 2) == [True] * 5


def alone(world):
    assert not world.spans and world.node is world and world.across.ranks == (world.rank,)


def test_operators_of_one_rank_work_as_ever():
    from pknumba import attention, gemm
    rng = np.random.default_rng(0)
    A, q = rng.integers(-2, 3, (20, 16)).astype("float16"), rng.standard_normal((1, 2, 20, 64)).astype("float16")

    def main(world):
        return gemm(world, A, A.T), attention(world, q, q, q)[0]
    with World.local(1, executor="interpreter") as world:
        want = main(world)
    assert all(np.array_equal(a, b) for found in run(3, main, 2) for a, b in zip(found, want))


def test_worlds_of_one_node():
    run(2, alone, None)
    run(2, alone, 2)
    alone(World.local(1, executor="interpreter"))


#: A call that cannot work -> (function(world), error, what it says).
WRONG = {
    "inside only": (lambda w: pknumba.send_recv(w, np.ones(3, "f4"), [(0, 1)]), UnsupportedError, "send_recv: this world spans 2 nodes"),
    "ring": (lambda w: pknumba.ring_attention(w, *[np.ones((1, 1, 8, 64), "float16")] * 3), ShapeError,
             "ring_attention: ranks are 2 on node local.0, 1 on node local.1"),
    "ulysses": (lambda w: pknumba.ulysses_attention(w, *[np.ones((1, 3, 8, 64), "float16")] * 3), UnsupportedError,
                "ulysses_attention: .* Pass world.node"),
    "norm": (lambda w: pknumba.all_reduce_rmsnorm(w, *[np.ones((3, 8), "float16")] * 2, np.ones(8, "float16")), UnsupportedError,
             "all_reduce_rmsnorm: this world spans 2 nodes"),
    "splits": (lambda w: pknumba.all_to_all(w, np.ones(3, "f4"), scatter_splits=(1, 1, 1)), UnsupportedError, "all_to_all with splits"),
    "uneven": (lambda w: pknumba.all_to_all(w, np.ones(3, "f4")), ShapeError, "2 on node local.0, 1 on node local.1"),
    "shape": (lambda w: pknumba.all_reduce(w, np.ones(3 + w.rank // 2, "f4")), ShapeError, "on rank 2 on node local.1"),
    "operator": (lambda w: (pknumba.all_reduce if w.rank < 2 else pknumba.reduce)(w, np.ones(3, "f4")), WorldError,
                 "in agree on all_reduce"),
    "counters": (lambda w: w.counters("c", 3), UnsupportedError, "signal inside a node only"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls(case):
    call, kind, text = WRONG[case]

    def main(world):
        with pytest.raises(kind, match=text):
            call(world)
        return True
    assert run(3, main, 2) == [True] * 3


@pytest.mark.parametrize("options, text", [(dict(node_size=0), "node_size = 0"), (dict(node_size=2, engine="pigeons"), "'pigeons'")])
def test_wrong_options(options, text):
    with pytest.raises(ConfigError, match=text):
        World.local(4, executor="interpreter", **options)
