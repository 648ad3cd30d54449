"""Reductions over rows: their PTX, their machine code, and what the interpreter says of scratch that is shared or too small."""

import numpy as np
import pytest

from pknumba.errors import ContractError, RaceError
from pknumba.primitives import arrive, col_max, col_sum, fence_async, fill, fill_rows, load, store, wait

from .kernels import Columns
from .tiny import TinyConfig, cubin, dtype_of, kernel, lacking, ptx, run

pytestmark = pytest.mark.ptx

PAIR = TinyConfig(consumers=2)
MEET = "shfl.sync.bfly.b32", "st.shared.v2.f32", "ld.shared.v2.f32", "bar.sync 1, 128;", "bar.sync 2, 128;"

#: Primitive -> (kernel that uses it, configuration, words of its PTX).
WORDS = {"col_max": (Columns, PAIR, "max.NaN.f32", *MEET), "col_sum": (Columns, PAIR, "add.f32", *MEET)}


@pytest.mark.parametrize("name", sorted(WORDS))
def test_ptx(name):
    made, cfg, *words = WORDS[name]
    assert lacking(words, made, cfg) == []


def test_barriers():
    """Stores, a barrier, loads, a barrier: twice, after the tile was loaded."""
    lines = [line for line in ptx(Columns, TinyConfig()).splitlines() if "//" not in line]
    words = {"st.shared.v2.f32": "s", "ld.shared.v2.f32": "l", "bar.sync \t1, 128": "b", "bar.sync 1, 128": "b"}
    order = "".join(next((mark for word, mark in words.items() if word in line), "") for line in lines)
    assert order.startswith("b" + ("s" * 8 + "b" + "l" * 32 + "b") * 2)


@pytest.mark.parametrize("cfg", [PAIR, TinyConfig(rows=128, cols=128)], ids=["64x64", "128x128"])
def test_assembled_without_spills(cfg):
    record = cubin(Columns, cfg)[1]
    assert record["spill"] == record["stack"] == 0 and record["notices"] == []


def _of_a_row_vector(cfg, g, s, task):
    col_max(fill_rows(64, 1.0), s.c[0])


def _through_16_bits(cfg, g, s, task):
    col_sum(fill(64, 64, 1.0), s.x[0])


def _through_a_stack(cfg, g, s, task):
    col_sum(fill(64, 64, 1.0), s.c)


def _through_too_little(cfg, g, s, task):
    col_max(fill(64, 256, 1.0), s.c[0])


def _through_registers(cfg, g, s, task):
    col_max(fill(64, 64, 1.0), fill(64, 64, 1.0))


@pytest.mark.parametrize("function, match", [(_of_a_row_vector, "register tile"), (_through_16_bits, "col_sum: of 64 columns.*float32"),
                                             (_through_a_stack, "col_sum: of 64 columns.*the worker's part"),
                                             (_through_too_little, "col_max: of 256 columns.*at least 4 values"),
                                             (_through_registers, "col_max: of 64 columns.*shared float32 tile")])
def test_misuse(function, match):
    broken, x = kernel(Columns, "Broken", consumer=function), np.ones((64, 64), dtype_of("bfloat16"))
    with pytest.raises(ContractError, match=match):
        run(broken, X=x, Y=x)
    with pytest.raises(ContractError, match=match):
        ptx(broken)


def _one_scratch(cfg, g, s, task):
    wait(s.x_full[0], 0)
    store(s.y[task.part], col_sum(load(s.x[task.part]), s.c[0]))
    fence_async(s.y[task.part])
    arrive(s.y_full[0])


def test_scratch_of_two_workers_is_a_race():
    x = np.ones((128, 64), dtype_of("bfloat16"))
    with pytest.raises(RaceError, match=r"c\[0\]"):
        run(kernel(Columns, "Shares", consumer=_one_scratch), PAIR, X=x, Y=x)


def _plain_sum(cfg, g, s, task):
    wait(s.x_full[0], 0)
    x = load(s.x[task.part])
    store(s.y[task.part], col_sum(x, s.c[task.part]) + 0 * col_max(x, s.c[task.part]))
    fence_async(s.y[task.part])
    arrive(s.y_full[0])


def test_nan_stays_on_the_interpreter():
    x = np.ones((64, 64), dtype_of("bfloat16"))
    x[5, 7] = np.nan
    found = run(kernel(Columns, "Sums", consumer=_plain_sum), X=x, Y=np.zeros_like(x))["Y"][0].astype(np.float32)
    assert (np.isnan(found) == (np.arange(64) == 7)).all() and (found[:, 0] == 64).all()
