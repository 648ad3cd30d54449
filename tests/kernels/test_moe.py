"""A mixture of experts on the interpreter: dispatch, combine, the layer; any world, seeds, hostile routers, and every mutant noticed."""

import importlib
import inspect
import time

import numpy as np
import pytest

from pknumba import MoeConfig, World, grouped_gemm, moe_combine, moe_dispatch_gemm, moe_layer
from pknumba.config import best_experts
from pknumba.errors import ConfigError, ContractError, DTypeError, LayoutError, ShapeError
from pknumba.templates import expert_calls
from pknumba.templates import experts as drivers

from . import harness, mutation
from .experts import Problem, routed
from .products import DTYPES, assert_close, guarded, readable, untouched

#: The smallest tiles that the tensor cores have, and few communicators.
TINY = dict(tile_m=64, tile_n=16, stages=2, c_stages=2, consumers=1, group_m=2, comm_sms=1, piece_m=4)


def layers(world, problems, calls=3, activation="relu", config=(None, None), **options):
    """Call the layer with new values in the same arrays and no barrier between; another rank is late each time."""
    from pknumba import interpreter as cpu
    mine = [x.copy() for x in problems[0].mine(world.rank)[:3]]
    for number in range(calls):
        problem = problems[number % len(problems)]
        cpu.rest(40 if number % world.size == world.rank else 0)
        for array, values in zip(mine, problem.mine(world.rank)):
            array[...] = values
        w1, w2 = problem.mine(world.rank)[3:]
        out = moe_layer(world, *mine, w1, w2, activation=activation, experts=problem.experts, config=config, **options)
        problem.check(world.rank, out, activation, f"call {number}")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_layer(size, seed):
    """A shape, a policy and a way of completing for each seed; experts fewer than ranks, more, and not a multiple of them."""
    shapes = [(20, 2, 5, 40, 48, 24), (7, 1, 1, 9, 17, 8), (33, 3, 2 * size + 1, 24, 16, 40), (4, 4, 13, 8, 8, 8)]
    problems = [Problem(10 * seed + i, size, *shapes[seed % 4], exact=True) for i in range(2)]
    config = (MoeConfig(**TINY).replace(stages=2 + seed % 2), MoeConfig(**TINY).replace(piece_m=8)) if seed % 2 else (None, None)
    World.local(size, executor="interpreter", num_sms=3 + seed % 3, **harness.schedule(seed)).run(layers, problems, 3, "relu", config)


@pytest.mark.parametrize("size", [1, 3])
def test_routes_in_stretches(size, monkeypatch):
    """Several warps read the entries for each expert, more stretches than a rank's entries fill; several blocks meet."""
    monkeypatch.setattr(expert_calls, "STRETCH", 5)
    problems = [Problem(i, size, 33, 3, 6, 16, 16, 16, exact=True) for i in range(2)]
    for problem in problems:
        for name in ("x", "indices", "weights"):
            getattr(problem, name)[0] = getattr(problem, name)[0][:13]
    World.local(size, executor="interpreter", num_sms=9, policy="starve").run(lambda w: layers(w, problems, 3, tokens=33))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["none", "relu", "silu", "gelu"])
def test_activations(dtype, activation):
    """Real numbers, against float64, both layouts of the weights."""
    problem = Problem(3, 2, 30, 2, 4, 72, 40, 56, dtype)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank, columns=activation == "silu")
        problem.check(world.rank, moe_layer(world, x, indices, weights, w1, w2, activation=activation), activation)

    World.local(2, executor="interpreter", seed=1).run(main)


@pytest.mark.parametrize("size", [1, 3])
def test_dispatch_and_combine_by_themselves(size):
    """Rows, ends and places as NumPy has them; what is made of the rows by other means goes back all the same."""
    problem = Problem(5, size, 21, 2, 5, 40, 24, 32)
    places = [routed(problem.x, problem.indices, 5, r) for r in range(size)]

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        symmetric = world.symmetric(x.shape, "bfloat16")
        symmetric.local[...] = x
        Y, routes = moe_dispatch_gemm(world, symmetric if size > 1 else x, indices, w1, experts=5)
        rows, ends, _ = places[world.rank]
        assert np.array_equal(routes.ends, ends)
        for e, (start, end) in enumerate(zip((0, *ends), ends)):
            assert_close(Y[start:end], [(rows[start:end], w1[e])], "bfloat16", f"expert {e}")
        for slot, place in enumerate(routes.place.ravel()):
            owners = [r for r in range(size) for n in [places[r][2]] if (world.rank, slot) in n]
            row = place if owners == [world.rank] else place - size * 42     # on other ranks, places count from the capacity on
            assert (place < 0) == (not owners) and (not owners or places[owners[0]][2][row] == (world.rank, slot))
        again = grouped_gemm(world, rows, w1, routes.ends)               # by other means: the same definition
        Y[:len(rows)] = np.maximum(again, 0)
        out, around = guarded((21, 32), "bfloat16")
        assert moe_combine(world, Y, routes, w2, weights, out=out) is out
        problem.check(world.rank, out, "relu")
        assert untouched(out, around)

    World.local(size, executor="interpreter", seed=2).run(main)


def test_hostile_routers():
    """Everything to one expert, nothing at all, no expert's number, the same expert twice."""
    def main(world):
        problem = Problem(1, 3, 16, 2, 4, 24, 16, 24, exact=True)
        for table in (np.full((16, 2), 3), np.full((16, 2), -1), np.full((16, 2), 2**31 - 1), np.full((16, 2), -2**31),
                      np.arange(32).reshape(16, 2) % 7 - 2):
            problem.indices = [table.astype(np.int32)] * 3
            x, indices, weights, w1, w2 = problem.mine(world.rank)
            problem.check(world.rank, moe_layer(world, x, indices, weights, w1, w2, activation="relu", experts=4), "relu")

    World.local(3, executor="interpreter").run(main)


def test_capacity():
    """Rows for which there is no room are dropped, those of the last ranks and experts first; their slots count as zero."""
    problem = Problem(2, 2, 12, 2, 2, 16, 16, 16, exact=True)
    problem.indices = [np.zeros((12, 2), np.int32)] * 2                  # 48 rows for expert 0, room for 30

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        for _ in range(2):
            out = moe_layer(world, x, indices, weights, w1, w2, activation="relu", capacity=30)
            kept = Problem(2, 2, 12, 2, 2, 16, 16, 16, exact=True)
            first = np.arange(24).reshape(12, 2) + 24 * world.rank
            kept.indices = [np.where(first < 30, 0, -1).astype(np.int32)] * 2
            kept.check(world.rank, out, "relu")

    World.local(2, executor="interpreter").run(main)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_with_other_numbers_of_tokens(size):
    """Some have fewer, one has none; what is symmetric must be whole."""
    problems = [Problem(i, size, 12, 2, 5, 24, 16, 24, exact=True) for i in range(2)]
    for problem in problems:
        for rank in range(size):
            rows = (12, 0, 7)[rank]
            for name in ("x", "indices", "weights"):
                getattr(problem, name)[rank] = getattr(problem, name)[rank][:rows]

    def main(world):
        for problem in problems * 2:
            x, indices, weights, w1, w2 = problem.mine(world.rank)
            out = moe_layer(world, x, indices, weights, w1, w2, activation="relu", tokens=12, experts=5)
            problem.check(world.rank, out, "relu")
        with pytest.raises(ShapeError):
            moe_layer(world, x, indices, weights, w1, w2, experts=5)

    World.local(size, executor="interpreter", policy="starve").run(main)


def test_sms_that_carry():
    """As many as the product leaves time for: more for few columns and for other devices, one where nothing is carried."""
    def comm(n, k, world, returns=False):
        cfg = best_experts(32768, 32, n, k, 132, None, world, returns)
        cfg.check()
        return cfg.comm_sms
    assert comm(2048, 7168, 1) > comm(14336, 4096, 1) and comm(2048, 7168, 8) > comm(2048, 7168, 1)
    assert comm(7168, 2048, 1, True) == 1 < comm(7168, 2048, 8, True) and 20 <= comm(64, 64, 8) <= 26
    assert best_experts(8, 4, 16, 16, 4).comm_sms == 1


def test_smallest_case_is_quick():
    problems = [Problem(0, 4, 8, 2, 4, 16, 16, 16, exact=True)]
    start = time.perf_counter()
    World.local(4, executor="interpreter").run(layers, problems, 1)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("change, error, words", [
    (dict(X="x[0]"), ShapeError, ("X has shape",)), (dict(indices="indices.astype('int64')"), DTypeError, ("int64",)),
    (dict(indices="indices[:5]"), ShapeError, ("(5, 2)",)), (dict(indices="indices[:, ::2]"), LayoutError, ("contiguous",)),
    (dict(B="w1[:1]"), ShapeError, ("share of 4 experts is 2",)), (dict(experts="7"), ShapeError, ("share of 7",)),
    (dict(capacity="0"), ShapeError, ("capacity = 0",)),
    (dict(config="MoeConfig(tile_n=192, ping_pong=True)"), ConfigError, ("ping_pong",)),
    (dict(config="MoeConfig(comm_sms=4)"), ConfigError, ("comm_sms = 4",)), (dict(activation="'tanh'"), ConfigError, ("'tanh'",))])
def test_bad_dispatches(change, error, words):
    """An error on every rank, also where only one is wrong; the world can still be used."""
    problem = Problem(0, 2, 8, 2, 4, 16, 16, 16, exact=True)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        given = {"X": x, "indices": indices, "B": w1, "experts": 4}
        if world.rank == 1 or "config" in change or "activation" in change or "capacity" in change:
            given.update({k: eval(v, {**globals(), "x": x, "indices": indices, "w1": w1}) for k, v in change.items()})
        with pytest.raises(error) as found:
            moe_dispatch_gemm(world, **given)
        if world.rank == 1:
            readable(found.value, *words)
        problem.check(world.rank, moe_layer(world, x, indices, weights, w1, w2, activation="relu"), "relu")

    World.local(2, executor="interpreter").run(main)


def test_bad_combines():
    problem = Problem(0, 2, 8, 2, 4, 16, 16, 16, exact=True)

    def main(world):
        x, indices, weights, w1, w2 = problem.mine(world.rank)
        Y, old = moe_dispatch_gemm(world, x, indices, w1)
        Y, routes = moe_dispatch_gemm(world, x, indices, w1)
        for given, error, words in ((dict(routes=old), ContractError, "earlier dispatch"), (dict(routes=None), ContractError, "NoneType"),
                                    (dict(weights=weights.astype(np.float64)), DTypeError, "float64"),
                                    (dict(Y=Y[:5]), ShapeError, "(5, 16)"), (dict(B=w2[:1]), ShapeError, "2 experts"),
                                    (dict(weights=weights[:, :1]), ShapeError, "(8, 1)")):
            with pytest.raises(error) as found:
                moe_combine(world, **{**dict(Y=Y, routes=routes, B=w2, weights=weights), **given})
            readable(found.value, words)

    World.local(2, executor="interpreter").run(main)


# ---- mutants

def dispatches(world, problems, calls, activation, config):
    """Dispatches alone, one after the other: what a rank has read must not be overwritten before."""
    from pknumba import interpreter as cpu
    mine = [x.copy() for x in problems[0].mine(world.rank)[:2]]
    for number in range(calls):
        problem = problems[number % len(problems)]
        cpu.rest(40 if number % world.size == world.rank else 0)
        for array, values in zip(mine, problem.mine(world.rank)):
            array[...] = values
        w1 = problem.mine(world.rank)[3]
        Y, routes = moe_dispatch_gemm(world, *mine, w1, activation=activation, experts=problem.experts, config=config[0])
        rows, ends, _ = routed(problem.x, problem.indices, problem.experts, world.rank)
        for e, (start, end) in enumerate(zip((0, *ends), ends)):
            wanted = np.maximum(rows[start:end].astype(np.float32) @ w1[e].astype(np.float32), 0).astype(Y.dtype)
            assert np.array_equal(Y[start:end], wanted), f"call {number}, rank {world.rank}, expert {e}"


def play(kernels, n, main=layers, size=2):
    """The n-th try of mutants, {kernel's name: the class that takes its place}.

    One expert has a single row, the last of its rank: a wait that is content with one less does not wait for it.
    """
    config = MoeConfig(**TINY).replace(piece_m=(4, 8)[n % 2])
    problems = [Problem(n + i, size, 36, 2, 3, 16, 72, 16, exact=True) for i in range(2)]
    for i, problem in enumerate(problems):
        table = np.random.default_rng(n + i).permutation([0] * 64 + [1] + [2] * 79).astype(np.int32)
        problem.indices = [x.reshape(36, 2) for x in np.split(table, 2)[:size]]
    with pytest.MonkeyPatch.context() as patch:
        for name, kernel in kernels.items():
            module = {"MoeCombine": "moe_combine"}.get(name, "moe_dispatch_gemm")
            patch.setattr(importlib.import_module(f"pknumba.kernels.{module}"), name, kernel)
        world = World.local(size, executor="interpreter", num_sms=3, max_switches=100_000, **harness.schedule(n))
        world.run(main, problems, 3, "relu", (config, config))


def test_the_toy_plays_a_mutant(monkeypatch):
    """``check --mutate`` gives the toy a class of another module with the kernel's name."""
    from pknumba.checking import groups
    played, module = [], importlib.import_module("pknumba.kernels.moe_combine")
    kernel = type("MoeCombine", module.MoeCombine.__bases__, {})
    monkeypatch.setattr(groups, "dispatch", lambda route, kernel, *_: played.append(kernel) or (None, None))
    monkeypatch.setattr(groups, "combine", lambda kernel, *_: played.append(kernel))
    with pytest.raises(groups.WrongResult):
        World.local(1, executor="interpreter").run(groups.experts(kernel, 1, np.random.default_rng(0)).main)
    assert [k.__name__ for k in played] == ["MoeDispatchGemm", "MoeCombine"] and played[1] is kernel


@pytest.mark.parametrize("file, name, least", [("moe_dispatch_gemm", "MoeDispatchGemm", 2), ("moe_combine", "MoeCombine", 4)])
def test_every_mutant_is_noticed(file, name, least):
    module = importlib.import_module(f"pknumba.kernels.{file}")
    alive, count = mutation.survivors(module, lambda m: getattr(m, name), lambda k, n: play({name: k}, n), 6, report=print)
    assert not alive, "\n".join(alive)
    assert count >= least


def test_every_mutant_of_the_drivers_is_noticed():
    from pknumba.kernels import MoeCombine, MoeDispatchGemm
    from pknumba.kernels.moe_dispatch_gemm import Route

    def make(mutant):
        def driven(base):
            def driver(kernel, role):
                special = {"communicator": mutant.errands, "loader": mutant.loading}.get(role.name)
                return (lambda play, _: special(kernel, play)) if special else super(made, kernel).driver(role)
            made = type(base)(base.__name__, (base,), {"driver": classmethod(driver)})
            return made

        class Routed(Route):
            @classmethod
            def driver(kernel, role):
                return lambda communicate, _: mutant.routed(kernel, communicate)
        return {"MoeDispatchGemm": driven(MoeDispatchGemm), "MoeCombine": driven(MoeCombine), "Route": Routed}

    def run(kernels, n):
        play(kernels, 7 - n, dispatches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(expert_calls, "STRETCH", 9)            # several blocks
            play({"Route": kernels["Route"]}, 7 - n, dispatches, 1)

    alive, count = mutation.survivors(drivers, make, run, 5, report=print)
    # The number of the call lies in device memory, and is written once all blocks of the rank have read it. The interpreter's host counts.
    lines = inspect.getsource(drivers).splitlines()
    assert all("wait_until(g.left" in lines[int(label.split()[1].strip(":")) - 1] for label in alive), "\n".join(alive)
    assert count >= 12
