"""GroupedGemm on the interpreter: exact results over configurations, groups of every kind, seeds; and its public function."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from pknumba import GemmConfig, GroupedGemmConfig, World, config, grouped_gemm  # noqa: F401 - GemmConfig: in a string below
from pknumba.checking import play
from pknumba.checking.groups import GROUPS, ToyGrouped, grouped_product
from pknumba.checking.toys import SMALL
from pknumba.errors import ConfigError, ContractError, DTypeError, LayoutError, ShapeError
from pknumba.kernels import GroupedGemm
from pknumba.templates import Grouped
from pknumba.templates import groups as drivers
from pknumba.templates.group_calls import rivals

from . import harness, mutation
from .products import DTYPES, assert_close, guarded, matrix, readable, untouched

FIELDS = "consumers ping_pong b_transposed stages tile_m c_stages group_m".split()
VARIANTS = [ToyGrouped(**SMALL).replace(**{f: getattr(v, f) for f in FIELDS}) for v in harness.variants(GroupedGemm)]


def run(cfg, number, sms=3, calls=2, seed=0, **options):
    """Problem ``number`` under that schedule."""
    return play(GroupedGemm, grouped_product(GroupedGemm, cfg, *GROUPS[number % len(GROUPS)], sms=sms), 1, calls, seed, **options)


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_every_configuration(number):
    for i in range(2):
        run(VARIANTS[number], number + 3 * i, 2 + i, **harness.schedule(number + 7 * i))


@pytest.mark.parametrize("number", range(len(GROUPS)))
def test_every_problem(number):
    for i in range(0, len(VARIANTS), 5):
        run(VARIANTS[i], number, 1 + number % 5, calls=3, **harness.schedule(number + i))


def play_mutant(kernel, n):
    """The n-th try of a mutant."""
    cfg = VARIANTS[(0, 6, 1, 7)[n % 4]].replace(c_stages=1 + n % 3)
    toy = grouped_product(kernel, cfg, *GROUPS[(4, 6, 1)[n % 3]], sms=2)
    play(kernel, toy, 1, 3, max_switches=200_000, **harness.schedule(n))


def test_every_mutant_is_noticed():
    module = importlib.import_module("pknumba.kernels.grouped_gemm")
    alive, count = mutation.survivors(module, lambda m: m.GroupedGemm, play_mutant, 12, report=print)
    assert not alive, "\n".join(alive)
    assert count >= 15


def test_ends_out_of_order(monkeypatch):
    """Offsets that fall, are negative, or lie beyond the rows."""
    monkeypatch.setattr(drivers, "look", lambda tensor, number: tensor[number])
    g = SimpleNamespace(groups=4, rows=40, ends=[10, 4, -7, 99])
    assert [Grouped.end(None, g, e, first) for e, first in enumerate((0, 10, 10, 10, 40))] == [10, 10, 10, 40, 40]
    monkeypatch.undo()
    ends, meant = [10, 4, -7, 30, 99, 50], [10, 10, 10, 30, 40, 40]
    toy = grouped_product(GroupedGemm, VARIANTS[0], [10, 0, 0, 20, 10, 0], 0, 40, 20, turn=False)
    inputs, expected = toy.inputs, toy.expected
    bad = type(toy)(**{**vars(toy), "inputs": lambda rng, rank: {**inputs(rng, rank), "ends": np.array(ends, np.int32)},
                       "expected": lambda ranks: expected([{**x, "ends": np.array(meant, np.int32)} for x in ranks])})
    play(GroupedGemm, bad, 1, 2, seed=1)


# ---- the public function

def problem(seed, groups, more, n, k, dtype, columns):
    """(A, B, offsets)."""
    rng = np.random.default_rng(seed)
    a, b = matrix(rng, (sum(groups) + more, k), dtype), matrix(rng, (len(groups), k, n), dtype)
    return a, np.ascontiguousarray(b.transpose(0, 2, 1)).transpose(0, 2, 1) if columns else b, np.cumsum(groups).astype(np.int32)


def check(c, a, b, ends, dtype):
    """Every group's product within the bound of rounding; other rows NaN still."""
    start = 0
    for e, end in enumerate(ends):
        assert_close(c[start:end], [(a[start:end], b[e])], dtype, f"group {e}")
        start = end
    assert np.isnan(c[start:].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [False, True])
def test_public(dtype, columns):
    """Groups of every kind, results inside larger arrays, no depth, no columns, no rows, no groups."""
    def main(world):
        cases = [((130, 0, 3, 200), 5, 136, 72), ((0, 0), 3, 9, 5), ((1,), 0, 1, 1), ((7, 9), 0, 20, 0), ((7,), 0, 0, 3),
                 ((0,), 0, 4, 4), ((), 4, 4, 4)]
        for i, case in enumerate(cases):
            a, b, ends = problem(i, *case, dtype, columns)
            out, around = guarded((len(a), case[2]), dtype)
            assert grouped_gemm(world, a, b, ends, out=out) is out
            check(out, a, b, ends, dtype)
            assert untouched(out, around) or not out.size

    World.local(1, executor="interpreter", seed=3).run(main)


def test_one_of_two_rivals_works(monkeypatch):
    """Whatever the groups, one kernel has turns and the other none: the one whose waves take less time, the first if they take as long."""
    monkeypatch.setattr(drivers, "look", lambda tensor, number: tensor[number])
    first, second = GroupedGemmConfig(), config.rival_groups(GroupedGemmConfig(), 8192, 32, 2048, 132)
    sizes = [[256] * 32, [132] * 15 + [4096] + [132] * 15 + [136], [8192] + [0] * 31, [0] * 32, [192] * 32,
             *np.random.default_rng(0).multinomial(8192, np.ones(32) / 32, 5).tolist()]
    chosen = []
    for rows in sizes:
        both = [SimpleNamespace(ends=np.cumsum(rows), **n) for n in rivals([first, second], 8192, 32, 2048, 7168, 132)]
        turns = [Grouped.turns(c, g) for c, g in zip((first, second), both)]
        waves = [-(-sum(-(-r // c.tile_m) for r in rows) * -(-2048 // c.tile_n) // 132) * config.tile_cost(c, 7168)
                 for c in (first, second)]
        assert turns == ([both[0].turns, 0] if waves[0] <= waves[1] else [0, both[1].turns])
        chosen.append(turns[1] > 0)
    assert chosen[:4] == [False, True, False, False] and chosen[4], "groups that fit one tall tile"


def test_rivals_together():
    """A call that launches both: groups for which the first works, and such for which the second does."""
    def main(world):
        for groups in ((128, 128, 128, 128), (190, 150, 130, 170)):
            a, b, ends = problem(0, groups, 0, 200, 72, "bfloat16", True)
            check(grouped_gemm(world, a, b, ends), a, b, ends, "bfloat16")
        return sum(kernel is GroupedGemm for kind, kernel, *_ in (k for k in world.cache if k[0] == "workspace"))

    assert World.local(1, executor="interpreter", num_sms=1).run(main) == [4]


@pytest.mark.parametrize("fields", [dict(tile_m=256), dict(tile_m=128, ping_pong=True), dict(tile_m=192, consumers=1)])
def test_blocks_without_rows(fields):
    """Consumers of more than 64 rows multiply the blocks of 64 that have some: groups that end in each of them."""
    def main(world):
        a, b, ends = problem(0, (130, 0, 3, 200, 64, 257, 65), 0, 40, 136, "bfloat16", True)
        out = np.full((len(a), 40), np.nan, a.dtype)
        config = GroupedGemmConfig(tile_n=32, stages=2, c_stages=1, **fields)
        check(grouped_gemm(world, a, b, ends, out=out, config=config), a, b, ends, "bfloat16")

    World.local(1, executor="interpreter", seed=4, num_sms=3).run(main)


def test_same_bits_whatever_the_schedule():
    a, b, ends = problem(0, (60, 0, 70), 0, 40, 200, "bfloat16", True)
    worlds = [World.local(1, executor="interpreter", seed=s, num_sms=1 + 3 * s) for s in range(3)]
    found = [world.run(lambda w: grouped_gemm(w, a, b, ends))[0] for world in worlds]
    assert all(np.array_equal(c.view(np.int16), found[0].view(np.int16)) for c in found)


@pytest.mark.parametrize("change, error, words", [
    (dict(B="b[0]"), ShapeError, ("B has shape", "3 dimensions")), (dict(offsets="ends[:1]"), ShapeError, ("1 offsets",)),
    (dict(offsets="ends.astype('int64')"), DTypeError, ("int64",)), (dict(A="a.astype('float16')"), DTypeError, ("float16",)),
    (dict(A="a[:, :5]"), ShapeError, ("(16, 5)",)), (dict(B="b[:, :, ::2]"), LayoutError, ("strides",)),
    (dict(offsets="np.repeat(ends, 2)[::2]"), LayoutError, ("8 bytes apart",)), (dict(out="a"), ShapeError, ("out has shape",)),
    (dict(config="GemmConfig()"), ContractError, ("GroupedGemmConfig",)),
    (dict(config="GroupedGemmConfig(cluster=2)"), ConfigError, ("cluster = 2",)),
    (dict(B="np.broadcast_to(b[:1], b.shape)"), LayoutError, ("0 bytes apart",)), (dict(A="[1]"), ContractError, ("no array",))])
def test_bad_arguments(change, error, words):
    a, b, ends = problem(0, (7, 9), 0, 12, 8, "bfloat16", False)
    given = {"A": a, "B": b, "offsets": ends, "out": None, "config": None}
    given.update({k: eval(v, {**globals(), "a": a, "b": b, "ends": ends}) for k, v in change.items()})

    def main(world):
        with pytest.raises(error) as found:
            grouped_gemm(world, **given)
        readable(found.value, *words)
        check(grouped_gemm(world, a, b, ends), a, b, ends, "bfloat16")

    World.local(1, executor="interpreter").run(main)


def test_no_world():
    a, b, ends = problem(0, (7, 9), 0, 12, 8, "bfloat16", False)
    with pytest.raises(ContractError, match="no World"):
        grouped_gemm(None, a, b, ends)
