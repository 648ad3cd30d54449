"""Mistakes in a kernel: one typed error that names the role, the primitive and the rule, with the line that is wrong."""

import inspect

import pytest

from pknumba import lowering
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.errors import CompileError, ConfigError, ContractError
from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.primitives import (accumulator, all_reduce, arrive, expect, fence_async, load_async, mma, signal, store_async, wait,
                                wait_until)
from pknumba.tiles import Semaphore, Tile, shared

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(300)]

SMALL = dict(tile_m=64, tile_n=32, stages=2, c_stages=1, consumers=1)
CASES = {}


def wrong(role, kind, *words, base=Gemm):
    """The decorated function in place of a role of ``base`` raises that error with these words."""
    def declare(function):
        CASES[function.__name__] = base, role, function, kind, words
        return function
    return declare


@wrong("storer", ContractError, "storer", "ab_empty", "declared by='consumer'", "Only that role")
def wrong_arriver(cfg, g, s, task):
    arrive(s.ab_empty[0])


@wrong("loader", ContractError, "loader", "c_empty", "declared by='storer'")
def wrong_role_expects(cfg, g, s, task):
    expect(s.c_empty[0], s.a[0])


@wrong("consumer", ContractError, "consumer", "load_async", "warpgroup", "is for a thread")
def load_in_a_warpgroup(cfg, g, s, task):
    load_async(s.a[0], g.A, (0, 0), s.ab_full[0])


@wrong("storer", ContractError, "storer", "mma", "is for a warpgroup")
def product_in_a_thread(cfg, g, s, task):
    mma(accumulator(64, 32), s.a[0, 0], s.b[0], False, True)


@wrong("storer", ContractError, "storer", "all_reduce", "is for a warp", base=GemmAllReduce)
def reduction_in_a_thread(cfg, g, s, task):
    all_reduce(g.C, (0, 0), (8, 32))


@wrong("consumer", ContractError, "consumer", "s.nothing", "ab_full, ab_empty", "declares")
def unknown_shared_field(cfg, g, s, task):
    wait(s.nothing[0], 0)


@wrong("communicator", ContractError, "cfg.comm_sms", "Read g.comm_sms", base=GemmAllReduce)
def field_of_the_launch(cfg, g, s, task):
    wait_until(g.done, task.id, cfg.comm_sms)


@wrong("loader", ContractError, "cfg.nothing", "GemmConfig")
def unknown_configuration_field(cfg, g, s, task):
    wait(s.ab_empty[cfg.nothing], 0)


@wrong("storer", ContractError, "unknown_counter", "g.done", "counters")
def unknown_counter(cfg, g, s, task):
    signal(g.done, 0, 0)


@wrong("storer", ContractError, "unknown_task_field", "task.nothing")
def unknown_task_field(cfg, g, s, task):
    wait(s.c_full[task.nothing], 0)


@wrong("storer", CompileError, "undefined_name", "nonsense", "not defined")
def undefined_name(cfg, g, s, task):
    nonsense(s)                                             # noqa: F821


@wrong("storer", CompileError, "what_numba_does_not_know", "open")
def what_numba_does_not_know(cfg, g, s, task):
    print(open("file"))


@wrong("storer", CompileError, "argument_missing", "wait()", "'phase'")
def argument_missing(cfg, g, s, task):
    wait(s.c_full[0])


@wrong("storer", ContractError, "storer", "wait(", "(sem, phase)")
def semaphore_that_is_none(cfg, g, s, task):
    wait(g.C, 0)


@wrong("storer", ContractError, "storer", "c_full is a ring", "Index it")
def ring_without_an_index(cfg, g, s, task):
    wait(s.c_full, 0)


@wrong("consumer", ContractError, "c[", "4 indices", "leading dimensions")
def too_many_indices(cfg, g, s, task):
    fence_async(s.c[0, 0, 0, 0])


@wrong("consumer", ContractError, "consumer", "mma of", "[64, 64]", "(m, k), (k, n)")
def shapes_that_do_not_multiply(cfg, g, s, task):
    mma(accumulator(64, 64), s.a[0, 0], s.b[0], False, True)


@wrong("loader", ContractError, "tensor A", "tensor maps", "equal shape")
def three_boxes(cfg, g, s, task):
    load_async(s.a[0], g.A, (0, 0), s.ab_full[0])
    load_async(s.b[0], g.A, (0, 0), s.ab_full[0])
    load_async(s.c[0], g.A, (0, 0), s.ab_full[0])


@pytest.mark.parametrize("name", CASES)
def test_role(name):
    base, role, function, kind, words = CASES[name]
    kernel = type("Mine", (base,), {role: staticmethod(function)})
    cfg = (GemmAllReduceConfig if base is GemmAllReduce else GemmConfig)(**SMALL)
    with pytest.raises((ContractError, CompileError, ConfigError)) as caught:
        lowering.build(kernel.plan(cfg))
    text = str(caught.value)
    assert type(caught.value) is kind, text
    for word in words:
        assert word in text, text
    assert ": " in text and text.count(". ") >= 1, text
    if name != "undefined_name":                            # numba does not say where
        first = inspect.getsourcelines(function)[1]
        lines = range(first, first + len(inspect.getsource(function).splitlines()))
        assert any(f"test_errors.py:{n})" in text for n in lines), text


@pytest.mark.parametrize("role", [lambda self, cfg, g, s, task: None, staticmethod(lambda cfg, g, s: None),
                                  classmethod(lambda cls, cfg, g, s, task: None)], ids=["method", "three arguments", "classmethod"])
def test_what_is_no_role(role):
    kernel = type("Mine", (Gemm,), {"storer": role})
    with pytest.raises(ContractError, match=r"Mine.storer: is no role. .*@staticmethod .*\(cfg, g, s, task\)"):
        kernel.plan(GemmConfig(**SMALL))


def declares(**declarations):
    """A kernel with these in place of its shared memory."""
    return type("Mine", (Gemm,), {"shared": staticmethod(lambda cfg: shared(**declarations))})


A = Tile((2, 1, 64, 64))


@pytest.mark.parametrize("declarations, kind, words", [
    (dict(full=Semaphore(2, by="nobody")), ContractError, ("full", "by='nobody'", "loader, consumer, storer")),
    (dict(a=Tile((9, 128, 256))), ConfigError, ("bytes of shared memory", "232448")),
    (dict(a=Tile((2, 64, 40))), ConfigError, ("tile a", "40 columns", "multiple of the 64")),
    (dict(a=Tile((2, 60, 64))), ConfigError, ("tile a", "60 rows", "multiple of 8")),
    (dict(a=Tile((2, 64, 64), swizzle=16)), ConfigError, ("tile a", "swizzle = 16")),
    (dict(a=A, c=Tile((3, 1, 64, 64), over="a")), ConfigError, ("tile c", "do not fit over a")),
    (dict(full=Semaphore(200, by="loader")), ConfigError, ("200 semaphores",)),
])
def test_declarations(declarations, kind, words):
    with pytest.raises((ContractError, ConfigError)) as caught:
        declares(**declarations).plan(GemmConfig(**SMALL))
    assert type(caught.value) is kind
    for word in words:
        assert word in str(caught.value), str(caught.value)


def stores(cfg, g, s, task):
    store_async(g.C, (0, 0), s.c[0])


def test_dtypes_that_differ():
    """The copy engine does not convert."""
    kernel = type("Mine", (Gemm,), {"storer": staticmethod(stores), "shared": staticmethod(lambda cfg: Gemm.shared(cfg)._replace(
        c=Tile((1, 64, 16), "float32", 64)))})
    with pytest.raises(ContractError, match="storer: .*C .bfloat16. and c.*float32.*does not convert"):
        lowering.build(kernel.plan(GemmConfig(**SMALL)))


def test_a_kernel_after_a_failed_one():
    """Nothing of a broken kernel stays behind."""
    _, record = lowering.build(Gemm.plan(GemmConfig(**SMALL)))
    assert record["spill"] == 0 and sorted(record["boxes"]) == ["A", "B", "C"] and all(len(b) == 1 for b in record["boxes"].values())


def test_a_name_that_another_module_has():
    """The second would take the first one's place in every kernel."""
    def signal(counters, number, peer):
        """Not ours."""
    with pytest.raises(ContractError, match="primitive signal: pknumba.primitives.signal has one already.*Choose another name"):
        lowering.primitive("thread")(signal)
