"""Wrong arguments: one typed error on every rank, before anything runs; out stays as it was, and the world can still be used."""

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from pknumba import World, gemm, gemm_all_reduce
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.errors import (ConfigError, ContractError, DeadlockError, DTypeError, LayoutError, PknumbaError, ShapeError,
                            WorldError)

from .products import readable

BF16 = np.dtype(ml_dtypes.bfloat16)
M, N, K = 40, 24, 32


def ones(*shape, dtype=BF16):
    return np.ones(shape, dtype)


class FakeTensor:
    """What the runtime would take for a torch tensor on the CPU if it were one: an array that is no NumPy array."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__()

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def locked(x):
    x.flags.writeable = False
    return x


#: name -> (changes of the call, error, words of the message). Values are made anew for each call; ``fields`` are the
#: configuration's.
WRONG = {
    "dtype of A": (dict(A=lambda: ones(M, K, dtype="f8")), DTypeError, ("A is float64", "bfloat16 or float16 or float32")),
    "dtype of B": (dict(B=lambda: ones(K, N, dtype="i4")), DTypeError, ("B is int32",)),
    "two dtypes": (dict(B=lambda: ones(K, N, dtype="f2")), DTypeError, ("bfloat16", "float16")),
    "dtype of out": (dict(out=lambda: ones(M, N, dtype="f2")), DTypeError, ("out is float16",)),
    "swapped bytes": (dict(A=lambda: ones(M, K, dtype=">f2")), DTypeError, ("A",)),
    "A has one dimension": (dict(A=lambda: ones(K)), ShapeError, ("A has shape (32,)",)),
    "B has three dimensions": (dict(B=lambda: ones(1, K, N)), ShapeError, ("B has shape (1, 32, 24)",)),
    "A is a scalar": (dict(A=lambda: ones()), ShapeError, ("A has shape ()",)),
    "inner extents": (dict(B=lambda: ones(K + 1, N)), ShapeError, ("(40, 32)", "(33, 24)")),
    "shape of out": (dict(out=lambda: ones(N, M)), ShapeError, ("out has shape (24, 40)", "(40, 24)")),
    "A by columns": (dict(A=lambda: ones(K, M).T), LayoutError, ("A has strides",)),
    "A every other column": (dict(A=lambda: ones(M, 2 * K)[:, ::2]), LayoutError, ("A has strides",)),
    "A backwards": (dict(A=lambda: ones(M, K)[::-1]), LayoutError, ("A has rows",)),
    "A repeats a row": (dict(A=lambda: np.broadcast_to(ones(K), (M, K))), LayoutError, ("A has rows",)),
    "rows of A overlap": (dict(A=lambda: as_strided(ones(M + K), (M, K), (2, 2))), LayoutError, ("A has rows",)),
    "B in neither direction": (dict(B=lambda: ones(2 * K, 2 * N)[::2, ::2]), LayoutError, ("B has strides",)),
    "B transposed, rows overlap": (dict(B=lambda: np.broadcast_to(ones(K), (N, K)).T), LayoutError, ("B has rows",)),
    "out by columns": (dict(out=lambda: ones(N, M).T), LayoutError, ("out has strides",)),
    "out repeats a row": (dict(out=lambda: as_strided(ones(N), (M, N), (0, 2))), LayoutError, ("out has rows",)),
    "out is read-only": (dict(out=lambda: locked(ones(M, N))), LayoutError, ("out is read-only",)),
    "A is a world": (dict(A=lambda: World.local(1, executor="interpreter")), ContractError, ("A", "World")),
    "A is a list": (dict(A=lambda: [[1.0]]), ContractError, ("A", "list")),
    "A is None": (dict(A=lambda: None), ContractError, ("A", "NoneType")),
    "out is a number": (dict(out=lambda: 3), ContractError, ("out", "int")),
    "A of another library": (dict(A=lambda: FakeTensor(ones(M, K, dtype="f2"))), WorldError, ("A", "world.asarray")),
    "no configuration": (dict(config=lambda: {"stages": 3}), ContractError, ("config is a dict",)),
    "does not fit": (dict(fields=lambda: dict(stages=9)), ConfigError, ("477184", "232448")),
    "too many sums": (dict(fields=lambda: dict(tile_m=256, tile_n=256)), ConfigError, ("256 registers",)),
    "half a stage": (dict(fields=lambda: dict(stages=2.5)), ConfigError, ("stages = 2.5",)),
    "no consumer": (dict(fields=lambda: dict(consumers=0)), ConfigError, ("consumers = 0",)),
}
#: Only operators that communicate can be called so.
WRONG_SUM = {
    "too many communicators": (dict(fields=lambda: dict(comm_sms=4)), ConfigError, ("comm_sms = 4", "4 SMs")),
    "uneven pieces": (dict(fields=lambda: dict(piece_m=7)), ConfigError, ("piece_m = 7",)),
    "gemm's configuration": (dict(config=GemmConfig), ContractError, ("config is a GemmConfig", "GemmAllReduceConfig")),
}


def arguments(family, changes=()):
    """A good call, but for the changes; ``out`` is full of NaN unless it is one of them."""
    made = {"A": ones(M, K), "B": ones(K, N), "out": np.full((M, N), np.nan, BF16), "config": None}
    made.update({name: make() for name, make in dict(changes).items()})
    if "fields" in made:
        made["config"] = family(**made.pop("fields"))
    return made


def refused(world, operator, made, subject, kind, words):
    """Call; check the error, and that neither kernel nor copy has run."""
    before = world.session.operations, world.session.accesses
    with pytest.raises(PknumbaError) as caught:
        operator(world, made["A"], made["B"], out=made["out"], config=made["config"])
    assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"
    readable(caught.value, *words)
    assert str(caught.value).startswith((subject, *("A:", "B:", "out:"), "GemmConfig", "GemmAllReduceConfig")), str(caught.value)
    assert (world.session.operations, world.session.accesses) == before, "something ran"
    out = made["out"]
    if isinstance(out, np.ndarray) and out.dtype == BF16:
        assert len({str(x) for x in out.ravel()}) <= 1, "out was written"


def works(world, operator):
    c = operator(world, ones(M, K), ones(K, N))
    assert (c == K * (world.size if operator is gemm_all_reduce else 1)).all()


@pytest.mark.parametrize("what", WRONG)
def test_gemm(what):
    changes, kind, words = WRONG[what]
    with World.local(1, executor="interpreter") as world:
        refused(world, gemm, arguments(GemmConfig, changes), "Gemm", kind, words)
        works(world, gemm)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("what", [*WRONG, *WRONG_SUM])
def test_every_rank_alike(what, size):
    changes, kind, words = {**WRONG, **WRONG_SUM}[what]

    def main(world):
        refused(world, gemm_all_reduce, arguments(GemmAllReduceConfig, changes), "GemmAllReduce", kind, words)
        works(world, gemm_all_reduce)

    World.local(size, executor="interpreter").run(main)


@pytest.mark.parametrize("culprit", [0, 2])
@pytest.mark.parametrize("what", [*WRONG, *WRONG_SUM])
def test_one_rank_alone(what, culprit):
    """The others learn who it was and why, with an error of the same class."""
    changes, kind, words = {**WRONG, **WRONG_SUM}[what]
    agreed = {"too many communicators"}

    def main(world):
        made = arguments(GemmAllReduceConfig, changes if world.rank == culprit else ())
        mine = kind, words if world.rank == culprit else (*words, f"rank {culprit}")
        refused(world, gemm_all_reduce, made, "GemmAllReduce", *(mine if what not in agreed else (kind, ("config",))))
        works(world, gemm_all_reduce)

    World.local(3, executor="interpreter").run(main)


DIFFERENT = {
    "rows": (dict(A=lambda: ones(M + 1, K), out=lambda: ones(M + 1, N)), ShapeError, "A.shape"),
    "columns": (dict(B=lambda: ones(K, N + 8), out=lambda: ones(M, N + 8)), ShapeError, "B.shape"),
    "depth": (dict(A=lambda: ones(M, 8), B=lambda: ones(8, N)), ShapeError, "A.shape"),
    "nothing": (dict(A=lambda: ones(0, K), out=lambda: ones(0, N)), ShapeError, "A.shape"),
    "dtype": ({x: lambda s=s: ones(*s, dtype="f2") for x, s in (("A", (M, K)), ("B", (K, N)), ("out", (M, N)))}, DTypeError, "dtype"),
    "config": (dict(config=lambda: GemmAllReduceConfig(comm_sms=2)), ConfigError, "config"),
    "layout of B": (dict(B=lambda: ones(N, K).T), WorldError, "layout of B"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_good_arguments_that_differ(what):
    changes, kind, word = DIFFERENT[what]

    def main(world):
        made = arguments(GemmAllReduceConfig, changes if world.rank == 1 else ())
        refused(world, gemm_all_reduce, made, "GemmAllReduce", kind, (word, "rank 1"))
        works(world, gemm_all_reduce)

    World.local(3, executor="interpreter").run(main)


def test_different_results():
    """One rank passes another symmetric array, or none at all."""
    def main(world):
        first, second = world.symmetric((M, N)), world.symmetric((M, N))
        for mine in (second, np.full((M, N), np.nan, BF16)):
            made = {**arguments(None), "out": mine if world.rank == 1 else first}
            refused(world, gemm_all_reduce, made, "GemmAllReduce", WorldError, ("out", "rank 1"))
        assert all(np.isnan(x.local.astype("f4")).all() for x in (first, second))
        works(world, gemm_all_reduce)

    World.local(2, executor="interpreter").run(main)


def test_result_of_another_world():
    def main(world):
        part = world.split([0, 1])
        foreign = part.symmetric((M, N))
        made = {**arguments(None), "out": foreign if world.rank == 1 else None}
        refused(world, gemm_all_reduce, made, "GemmAllReduce", WorldError, ("another world",))

    World.local(2, executor="interpreter").run(main)


def test_closed_result():
    def main(world):
        gone = world.symmetric((M, N))
        gone.close()
        before = world.session.operations
        with pytest.raises(WorldError, match="closed"):
            gemm_all_reduce(world, ones(M, K), ones(K, N), out=gone if world.rank == 1 else None)
        assert world.session.operations == before
        works(world, gemm_all_reduce)

    World.local(2, executor="interpreter").run(main)


@pytest.mark.parametrize("operator", [gemm, gemm_all_reduce])
def test_no_world(operator):
    for thing in (None, 3, "world", World):
        with pytest.raises(PknumbaError) as caught:
            operator(thing, ones(M, K), ones(K, N))
        assert type(caught.value) is ContractError
        readable(caught.value, "no World", "Gemm")
    world = World.local(1, executor="interpreter")
    world.close()
    with pytest.raises(WorldError) as caught:
        operator(world, ones(M, K), ones(K, N))
    readable(caught.value, "closed")
    with World.local(2, executor="interpreter") as world, pytest.raises(WorldError) as caught:
        operator(world, ones(M, K), ones(K, N))             # from outside: no rank calls it
    readable(caught.value, "run")


def test_a_rank_that_does_not_come():
    def main(world):
        if world.rank:
            gemm_all_reduce(world, ones(M, K), ones(K, N))

    with pytest.raises(DeadlockError, match="rank 0"):
        World.local(2, executor="interpreter").run(main)


def test_a_rank_that_changes_its_mind():
    """What was agreed once is not asked again: such a rank is found by the deadlock it makes, never by a wrong number."""
    def main(world):
        works(world, gemm_all_reduce)
        n = N if world.rank else N + 1
        gemm_all_reduce(world, ones(M, K), ones(K, n))

    with pytest.raises(DeadlockError, match="(?s)GemmAllReduce.*reproduce"):
        World.local(2, executor="interpreter").run(main)


def test_out_shares_memory_with_what_is_read():
    """Columns of one larger matrix are apart, though each lies between the other's rows."""
    with World.local(1, executor="interpreter") as world:
        both, square = ones(24, 48), ones(24, 24)
        for A, B, out in ((square, square, square), (both[:, :24], square, both[:, 23:47]), (square, both[:, :24].T, both[:, 1:25])):
            with pytest.raises(LayoutError, match="[AB] and out share memory"):
                gemm(world, A, B, out=out)
        assert (gemm(world, both[:, :24], square, out=both[:, 24:]) == 24).all() and (both[:, :24] == 1).all()
        assert (gemm(world, square, both[:, :24].T, out=both[:, 24:]) == 24).all()


def test_a_call_that_only_one_rank_makes():
    """The other's program has ended: the message says what kind of mistake that is."""
    with pytest.raises(DeadlockError, match="waits for rank 1 in allgather\n  No kernel runs: another rank's program has ended"):
        World.local(2, executor="interpreter").run(lambda world: world.rank or gemm_all_reduce(world, ones(M, K), ones(K, N)))
