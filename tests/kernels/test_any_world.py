"""Every operator on worlds of 5, 6 and 7 ranks, and on sub-worlds with any members, several at once; how many SMs may communicate."""

import numpy as np
import pytest

import pknumba
from pknumba import GemmAllReduceConfig, World
from pknumba.config import AllGatherGemmConfig, GemmAllToAllConfig, GemmReduceScatterConfig
from pknumba.errors import ConfigError

from .definitions import DEFINITIONS
from .test_all_reduce_rmsnorm import definition as norm_definition
from .test_collectives import ARGUMENTS, SCATTERS, TOY

SMALL = dict(tile_m=64, tile_n=16, stages=2, c_stages=1, consumers=1)
#: Operator -> (its configuration, function (pairs (A, B) of every rank, rank) of its result). Small integers are exact.
FUSED = {
    "gemm_all_reduce": (GemmAllReduceConfig(**SMALL, comm_sms=1), lambda ab, r: sum(a @ b for a, b in ab)),
    "gemm_reduce_scatter": (GemmReduceScatterConfig(**SMALL, comm_sms=1),
                            lambda ab, r: np.array_split(sum(a @ b for a, b in ab), len(ab))[r]),
    "all_gather_gemm": (AllGatherGemmConfig(**SMALL, comm_sms=1, chunk_m=8), lambda ab, r: np.concatenate([a for a, _ in ab]) @ ab[r][1]),
    "gemm_all_to_all": (GemmAllToAllConfig(**SMALL), lambda ab, r: np.hstack([np.array_split(a @ b, len(ab))[r] for a, b in ab])),
}


def collective(world, name, call):
    """A call of every argument that differs; the result is exact."""
    for arguments in ARGUMENTS.get(name, lambda n: [{}])(world.size):
        shape = [2, 3, 5]
        if name in SCATTERS:
            shape[arguments.get("axis", arguments.get("scatter_axis"))] *= world.size
        xs = [np.random.default_rng([call, r]).integers(-5, 6, shape).astype(np.float32) for r in range(world.size)]
        got, want = getattr(pknumba, name)(world, xs[world.rank], config=TOY, **arguments), DEFINITIONS[name](xs, world.rank, **arguments)
        assert (got is None) == (want is None) and (want is None or np.array_equal(got, want)), (name, arguments, world.size)


def norm(world, call):
    """all_reduce_rmsnorm in both ways."""
    rng = np.random.default_rng(call)
    xs = [rng.integers(-5, 6, (3, 21)).astype(np.float32) for _ in range(world.size)]
    residual, weight = rng.integers(-5, 6, (3, 21)).astype(np.float32), np.ones(21, np.float32)
    for algorithm in ("one-shot", "two-shot"):
        config = pknumba.NormConfig(blocks=2, warps=2, unroll=1, algorithm=algorithm)
        y, h = pknumba.all_reduce_rmsnorm(world, xs[world.rank], residual, weight, config=config)
        want, expected = norm_definition(xs, residual, weight, 1e-6)
        assert np.array_equal(h, want) and np.allclose(y, expected, 1e-5)


def fused(world, name, call):
    """A call with shares of unequal length."""
    config, define = FUSED[name]
    m, n, k = 2 * world.size + 1, 9, 7
    rows = [len(x) if name == "all_gather_gemm" else m for x in np.array_split(np.zeros(m), world.size)]
    rngs = [np.random.default_rng([call, r]) for r in range(world.size)]
    ab = [[rng.integers(-1, 2, s).astype(np.float16) for s in ((rows[r], k), (k, n))] for r, rng in enumerate(rngs)]
    more = {"rows": m} if name == "all_gather_gemm" else {}
    got = getattr(pknumba, name)(world, *ab[world.rank], config=config, **more)
    want = define([[x.astype(np.float32) for x in pair] for pair in ab], world.rank)
    assert got.shape == want.shape and (got == want).all(), (name, world.size)


def every_operator(world, call=0):
    """All of them, one after the other."""
    for name in DEFINITIONS:
        collective(world, name, call)
    for name in FUSED:
        fused(world, name, call)
    norm(world, call)


@pytest.mark.parametrize("size", [5, 6, 7])
def test_odd_worlds(size):
    World.local(size, executor="interpreter", seed=size, num_sms=4, policy="pct" if size == 6 else "random").run(every_operator)


def test_sub_worlds():
    """Of eight ranks: two sub-worlds with any members, in any order, at once; then a sub-world of a sub-world."""
    def main(world):
        part = world.split([6, 1, 4] if world.rank in (1, 4, 6) else [7, 0, 5, 2] if world.rank in (0, 2, 5, 7) else [3])
        every_operator(part)
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            collective(part, name, 1)
        rest = part.split([part.size - 1, 0]) if part.size > 1 else None
        if rest is not None:
            every_operator(rest, 7)
        assert (pknumba.all_reduce(world, np.full(3, world.rank, np.float32)) == 28).all()
    World.local(8, executor="interpreter", num_sms=4).run(main)


@pytest.mark.parametrize("name", [n for n in FUSED if hasattr(FUSED[n][0], "comm_sms")])
def test_how_many_sms_may_communicate(name):
    """1 to all but one; every rank is told of others."""
    def main(world):
        a, b = np.ones((5 if name == "all_gather_gemm" else 10, 8), np.float16), np.ones((8, 8), np.float16)
        config = FUSED[name][0]
        for comm_sms in (-1, 0, 4, 5):
            with pytest.raises(ConfigError, match="comm_sms"):
                getattr(pknumba, name)(world, a, b, config=config.replace(comm_sms=comm_sms))
        results = [getattr(pknumba, name)(world, a, b, config=config.replace(comm_sms=n)) for n in (1, 2, 3)]
        assert all((r == results[0]).all() for r in results) and results[0][0, 0] == (8 if name == "all_gather_gemm" else 16)
    World.local(2, executor="interpreter", num_sms=4).run(main)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_reduce_rmsnorm"])
def test_how_many_blocks_may_communicate(name):
    def main(world):
        x = np.ones((3, 4), np.float32)
        others = (x, np.ones(4, np.float32)) if name == "all_reduce_rmsnorm" else ()
        kind = pknumba.NormConfig if others else pknumba.CommConfig
        for blocks in (-1, 2**16):
            with pytest.raises(ConfigError, match="blocks"):
                getattr(pknumba, name)(world, x, *others, config=kind(blocks=blocks))
        getattr(pknumba, name)(world, x, *others, config=kind(blocks=7, warps=1))      # more than there are SMs: they need not be resident
    World.local(2, executor="interpreter", num_sms=2).run(main)
