"""Misuse of primitives is a ContractError on both executors, before anything runs on a device."""

import numpy as np
import pytest

from pknumba.errors import CompileError, ContractError, ProtocolError
from pknumba.primitives import (accumulator, all_reduce, arrive, as_operand, broadcast, cast, exp2, expect, fill, fill_rows, load,
                                load_async, mask, maximum, mma, mma_wait, reduce, row_max, signal_all, store, store_async_wait,
                                store_max_async, store_rows, sync, turn_wait, wait, wait_until)

from .kernels import FromRegisters, Softmax, Swap, Through
from .tiny import TinyComm, TinyConfig, dtype_of, kernel, ptx, run

PAIR, PING_PONG = TinyConfig(consumers=2), TinyConfig(consumers=2, ping_pong=True)
CASES = {}


def misuse(base=Through, cfg=TinyConfig(), match=".", role="consumer"):  # noqa: B008 - frozen
    """Register a role that breaks a rule; it has loaded X before, where the kernel loads."""
    def register(function):
        CASES[function.__name__] = base, cfg, match, role, function
        return function
    return register


@misuse(match="loader: calls load, but plays in a thread. load is for a warpgroup.", role="loader")
def load_in_a_thread(cfg, g, s, task):
    load(s.x)


@misuse(match="storer: calls mma, but plays in a thread", role="storer", base=FromRegisters)
def mma_in_a_thread(cfg, g, s, task):
    mma(accumulator(cfg.rows, cfg.cols), s.x, s.b)


@misuse(match="consumer: calls load_async, but plays in a warpgroup. load_async is for a thread")
def load_async_in_a_warpgroup(cfg, g, s, task):
    load_async(s.x, g.X, (0, 0), s.x_full[0])


@misuse(match="consumer: calls expect, but plays in a warpgroup")
def expect_in_a_warpgroup(cfg, g, s, task):
    expect(s.y_full[0], s.x)


@misuse(match="loader: calls sync, but plays in a thread", role="loader")
def sync_in_a_thread(cfg, g, s, task):
    sync(s)


@misuse(match="loader: calls turn_wait, but plays in a thread", role="loader")
def turn_wait_in_a_thread(cfg, g, s, task):
    turn_wait(s, task.turn)


@misuse(match="consumer: calls all_reduce, but plays in a warpgroup. all_reduce is for a warp")
def all_reduce_in_a_warpgroup(cfg, g, s, task):
    all_reduce(g.X, (0, 0), (64, 64))


@misuse(match="declared (by|for role)", role="loader")
def wrong_arriver(cfg, g, s, task):
    arrive(s.y_full[0])


@misuse(match="declared (by|for role)", role="storer")
def wrong_expecter(cfg, g, s, task):
    expect(s.y_full[0], s.x)


@misuse(match="turns", base=Swap, cfg=PING_PONG)
def sync_of_workers_in_turns(cfg, g, s, task):
    sync(s)


@misuse(match=".")
def store_of_another_shape(cfg, g, s, task):
    store(s.y, fill(2 * cfg.rows, cfg.cols, 1))


@misuse(match="accumulator")
def store_of_a_row_vector(cfg, g, s, task):
    store(s.y, fill_rows(cfg.rows, 1))


@misuse(base=Swap, cfg=PAIR, match=".")
def load_of_a_stack(cfg, g, s, task):
    wait(s.x_full[0], 0)
    load(s.x)


@misuse(base=FromRegisters, match="shapes|Shapes")
def mma_of_other_shapes(cfg, g, s, task):
    wait(s.x_full[0], 0)
    mma(accumulator(cfg.rows, 128), s.x, s.b)


@misuse(base=FromRegisters, match="float16")
def mma_of_two_dtypes(cfg, g, s, task):
    wait(s.x_full[0], 0)
    mma(accumulator(cfg.rows, cfg.cols), as_operand(load(s.x), "float16"), s.b)


@misuse(base=FromRegisters, match="as_operand")
def mma_of_an_accumulator(cfg, g, s, task):
    wait(s.x_full[0], 0)
    mma(accumulator(cfg.rows, cfg.cols), load(s.x), s.b)


@misuse(match=".")
def maximum_of_two_numbers(cfg, g, s, task):
    maximum(1.0, 2.0)


@misuse(match="It takes|Shapes")
def sum_of_two_shapes(cfg, g, s, task):
    exp2(fill(64, 64, 1) + fill(64, 32, 1))


@misuse(match="Load a shared tile first")
def sum_with_a_shared_tile(cfg, g, s, task):
    exp2(fill(64, 64, 1) * s.x)


@misuse(match="It takes|Shapes")
def rows_of_another_tile(cfg, g, s, task):
    maximum(fill(64, 64, 1), fill_rows(128, 1))


@misuse(match=".")
def row_max_of_a_row_vector(cfg, g, s, task):
    row_max(fill_rows(64, 1))


@misuse(match=".")
def mask_of_a_row_vector(cfg, g, s, task):
    mask(fill_rows(64, 1), 3)


@misuse(match="int32")
def cast_to_integers(cfg, g, s, task):
    cast(fill(64, 64, 1), "int32")


@misuse(base=Softmax, match=".")
def store_rows_of_a_tile(cfg, g, s, task):
    store_rows(g.R, (0, 0), fill(64, 64, 1))


@misuse(base=TinyComm, role="communicator", match="op = 'mean'")
def all_reduce_of_an_unknown_op(cfg, g, s, task):
    all_reduce(g.X, (0, 0), (8, 32), "mean")


@misuse(base=TinyComm, role="communicator", match="multiple of 16 bytes")
def reduce_of_a_narrow_window(cfg, g, s, task):
    reduce(g.X, (0, 0), (8, 4))


@misuse(base=TinyComm, role="communicator", match="multiple of 16 bytes")
def broadcast_of_a_narrow_window(cfg, g, s, task):
    broadcast(g.X, (0, 0), (8, 4))


@misuse(base=TinyComm, cfg=TinyConfig(dtype="float32"), role="communicator", match="max of float32 by multicast")
def multicast_maximum_of_float32(cfg, g, s, task):
    reduce(g.X, (0, 0), (8, 32), op="max", multicast=True)


def _broken(name):
    base, cfg, match, role, function = CASES[name]
    return kernel(base, "Broken", **{role: function}), cfg, match


@pytest.mark.parametrize("name", CASES)
def test_interpreter(name):
    broken, cfg, match = _broken(name)
    arrays = {n: np.ones((128, 128), dtype_of(broken.kinds.get(n, cfg.dtype))) for n in broken.tensors}
    with pytest.raises(ContractError, match=match) as raised:
        run(broken, cfg, **arrays)
    assert "reproduce:" in str(raised.value)


@pytest.mark.parametrize("name", CASES)
def test_device(name):
    broken, cfg, match = _broken(name)
    with pytest.raises(ContractError, match=match):
        ptx(broken, cfg)


# ---- what only one executor can say

def _waits_for_a_number_of_its_own(cfg, g, s, task):
    store_async_wait(task.turn)


def _pending_of_its_own(cfg, g, s, task):
    mma_wait(accumulator(64, 64), task.turn)


def _ring(cfg, g, s, task):
    wait(s.x_full, 0)


def _odd_rows(cfg, g, s, task):
    fill(63, 64, 1)


def _wide(cfg, g, s, task):
    accumulator(64, 260)


def _shape_of_its_own(cfg, g, s, task):
    all_reduce(g.X, (0, 0), (task.id, 32))


@pytest.mark.parametrize("base, role, function, match", [
    (Through, "storer", _waits_for_a_number_of_its_own, "store_async_wait: pending.*must be a constant"),
    (Through, "consumer", _pending_of_its_own, "mma_wait: pending.*must be a constant"),
    (Through, "consumer", _ring, "x_full is a ring of semaphores. Index it"),
    (Through, "consumer", _odd_rows, "fill: .63, 64.*multiple of 64 rows"),
    (Through, "consumer", _wide, "up to 256 columns"),
    (TinyComm, "communicator", _shape_of_its_own, "all_reduce: shape.*must be a constant")])
def test_device_only(base, role, function, match):
    with pytest.raises(ContractError, match=match):
        ptx(kernel(base, "Broken", **{role: function}))


def _float_max(cfg, g, s, task):
    wait(s.y_full[0], 0)
    store_max_async(g.Y, (task.id, 0), s.y)


def test_float32_has_no_bulk_maximum():
    with pytest.raises(ContractError, match="store_max_async of float32"):
        ptx(kernel(Through, "Broken", storer=_float_max), TinyConfig(dtype="float32"))


def _touches_too_early(cfg, g, s, task):
    wait(s.x_full[0], 0)
    acc = mma(accumulator(cfg.rows, cfg.cols), s.x, s.b, False)
    store(s.y, acc * 2)
    mma_wait(acc, 0)


def test_accumulator_touched_before_the_wait():
    x = np.ones((64, 64), dtype_of("bfloat16"))
    with pytest.raises(ProtocolError, match="accumulator touched before mma_wait"):
        run(kernel(FromRegisters, "Broken", consumer=_touches_too_early), X=x, B=x, Y=x)


class WaitsForOthers(Through):
    """Its loader copies after it has waited for a counter."""

    counters = ("come",)

    @staticmethod
    def loader(cfg, g, s, task):
        wait_until(g.come, 0, 0, copies=False)
        Through.loader(cfg, g, s, task)


def test_copy_after_a_wait_without_copies():
    x = np.ones((64, 64), np.float32)
    with pytest.raises(ProtocolError, match="says that no copies follow.*Leave out copies=False"):
        run(WaitsForOthers, TinyConfig(dtype="float32"), X=x, Y=x)


def _cut_otherwise(cfg, g, s, task):
    reduce(g.X, (3, 0), (8, 32), g.Y, (0, 0))


def test_windows_cut_otherwise():
    with pytest.raises(ProtocolError, match="edges must cut both windows alike"):
        run(kernel(TinyComm, "Broken", communicator=_cut_otherwise), TinyConfig(dtype="float32"), X=np.ones((30, 32), np.float32),
            Y=np.ones((32, 32), np.float32))


def _unknown_argument(cfg, g, s, task):
    load(s.x, depth=3)


def test_unknown_argument():
    broken, x = kernel(Through, "Broken", consumer=_unknown_argument), np.ones((64, 64), dtype_of("bfloat16"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        run(broken, X=x, Y=x)
    with pytest.raises(CompileError, match="unexpected keyword argument 'depth'"):
        ptx(broken)


def _signals(cfg, g, s, task):
    signal_all(g.finished, 0)


def test_signal_all_in_a_warpgroup():
    with pytest.raises(ContractError, match="signal_all is for a thread or a warp"):
        ptx(kernel(TinyComm, "Broken", consumer=_signals))
