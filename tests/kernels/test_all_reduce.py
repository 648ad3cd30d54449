"""all_reduce on the interpreter: sizes, dtypes, operations, algorithms, arrays of all kinds, seeds."""

import numpy as np
import pytest

from pknumba import CommConfig, World, all_reduce
from pknumba.errors import ConfigError, ContractError, LayoutError, ShapeError, WorldError

from .collectives import DTYPES, KINDS, SHAPES, SIZES, TOY, play
from .harness import schedule
from .definitions import reduced

OPS = ("sum", "min", "max")
ALGORITHMS = ("one-shot", "two-shot", "read-back")


def run(size, shape, op="sum", algorithm="auto", config=TOY, **options):
    config = config and config.replace(algorithm=algorithm)
    play(size, lambda world, x, out: all_reduce(world, x, op=op, out=out, config=config),
         lambda xs, rank: reduced(xs, op), shape, **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_shapes(size, algorithm):
    for i, shape in enumerate(SHAPES):
        run(size, shape, algorithm=algorithm, seed=i, dtype=list(DTYPES)[i % 4], calls=2)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "multimem"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, op, algorithm):
    if algorithm == "multimem" and (dtype == "int32" or dtype == "float32" and op != "sum"):
        with pytest.raises(ContractError, match="multicast"):
            run(3, (333,), op=op, dtype=dtype, algorithm=algorithm)
        return
    run(3, (333,), op=op, dtype=dtype, algorithm=algorithm)


@pytest.mark.parametrize("shape", [(333,), (20, 13), (3, 4, 5), (8, 40)])
@pytest.mark.parametrize("kinds", [(a, b) for a in KINDS for b in (*KINDS, "none", "same")], ids=str)
def test_kinds(kinds, shape):
    """Symmetric arrays have rows apart where those are no multiple of 16 bytes."""
    for algorithm in ALGORITHMS:
        run(3, shape, kinds=kinds, algorithm=algorithm, dtype="bfloat16")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_seeds(size, algorithm):
    for seed in range(25):
        kinds = KINDS[seed % 2], ("none", *KINDS)[seed % 3]
        run(size, (500,), algorithm=algorithm, kinds=kinds, skew=30, calls=4 if size < 8 else 2, **schedule(seed))


def test_sizes_choose_the_algorithm():
    """By default; both sides of the limit are right."""
    run(2, (65536,), config=None, calls=2)
    run(2, (65537,), config=None, calls=2)


def test_sums_are_made_in_float32_and_rounded_once():
    def main(world):
        x = np.array([256, 1, 1][world.rank:world.rank + 1], DTYPES["bfloat16"])
        return [float(all_reduce(world, x, config=TOY.replace(algorithm=a))[0]) for a in ALGORITHMS]
    assert World.local(3, executor="interpreter").run(main) == [[258] * len(ALGORITHMS)] * 3


def test_interleaved_with_others():
    """Calls of other shapes, dtypes and algorithms between them use the same memory in turn."""
    def main(world):
        for number in range(12):
            n, dtype = (100, 700, 2000)[number % 3], ("float32", "bfloat16")[number // 3 % 2]
            inputs = [np.full(n, r + number, DTYPES[dtype]) for r in range(world.size)]
            got = all_reduce(world, inputs[world.rank], config=TOY.replace(algorithm=ALGORITHMS[number // 2 % 3]))
            assert (got == sum(x.astype(np.float32) for x in inputs)).all()
    for seed in range(5):
        World.local(3, executor="interpreter", **schedule(seed)).run(main)


def test_sub_world():
    def main(world):
        part = world.split([3, 1, 2])
        if part is not None:
            assert (all_reduce(part, np.full(40, world.rank, np.int32)) == 6).all()
    World.local(4, executor="interpreter").run(main)


WRONG = {
    "shapes": (lambda r: dict(x=np.ones(4 + r, np.float32)), ShapeError),
    "ops": (lambda r: dict(op=("sum", "min")[r]), WorldError),
    "op": (lambda r: dict(op="mean"), ConfigError),
    "config": (lambda r: dict(config=TOY.replace(warps=99)), ConfigError),
    "shape of out": (lambda r: dict(out=np.ones(5, np.float32)), ShapeError),
    "layout": (lambda r: dict(x=np.ones((4, 4), np.float32).T), LayoutError),
    "shared memory": (lambda r: (lambda m: dict(x=m[:4], out=m[2:6]))(np.ones(8, np.float32)), LayoutError),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name):
    """Every rank raises, and the world can still be used."""
    change, kind = WRONG[name]

    def main(world):
        with pytest.raises(kind):
            all_reduce(world, **{**dict(x=np.ones(4, np.float32)), **change(world.rank)})
        assert (all_reduce(world, np.ones(4, np.float32)) == 2).all()
    World.local(2, executor="interpreter").run(main)


def test_one_rank_only_is_wrong():
    def main(world):
        with pytest.raises(LayoutError):
            all_reduce(world, np.ones((2, 8), np.float32)[:, ::2] if world.rank else np.ones((2, 4), np.float32))
    World.local(3, executor="interpreter").run(main)


def test_config_is_checked():
    for fields in (dict(warps=0), dict(unroll=3), dict(algorithm="ring"), dict(blocks=-1), dict(at_once=3)):
        with pytest.raises(ConfigError):
            CommConfig(**fields).check()
