"""Every primitive on a real GPU: the tiny kernels of tests/primitives through the normal templates, against NumPy.

Ranks are threads of this process; on one GPU they share it. Nothing here uses multicast.
"""

import numpy as np
import pytest

from pknumba.runtime import driver

from ..primitives import kernels, rank_kernels
from ..primitives.cases import CASES
from ..primitives.tiny import TinyConfig, dtype_of, run

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU")]
DEVICE = dict(executor="gpu", wait_limit_s=20)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_value(case):
    case.check(run, **{"num_sms": 8, **case.options, **DEVICE})


def test_rounding_to_nearest_even():
    """store, as_operand and the copy engine agree with NumPy on random bits, subnormals and infinities too."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal((64, 64)).astype(np.float32), rng.integers(-30, 30, (64, 64)))
    x[0, :4] = np.inf, -np.inf, 0.0, -0.0
    found = run(kernels.Through, TinyConfig(dtype="float32"), X=x, Y=np.zeros_like(x), num_sms=8, **DEVICE)["Y"][0]
    assert (found == x).all()
    for dtype in ("bfloat16", "float16"):
        y = x.astype(dtype_of(dtype)) if dtype == "bfloat16" else np.clip(x, -6e4, 6e4).astype(np.float16)
        found = run(kernels.Through, TinyConfig(dtype=dtype), X=y, Y=np.zeros_like(y), num_sms=8, **DEVICE)["Y"][0]
        assert (found.view(np.uint16) == y.view(np.uint16)).all()


def test_nan_comes_through():
    """A NaN that was loaded is stored, and makes its row's largest element and sum NaN."""
    x = np.ones((64, 64), np.float32)
    x[5, 9] = np.nan
    found = run(kernels.Extremes, TinyConfig(dtype="float32"), X=x, Y=np.zeros_like(x), num_sms=8, **DEVICE)["Y"][0]
    assert np.isnan(found[5, :9]).all() and np.isfinite(np.delete(found, 5, 0)).all()


def test_many_calls_in_a_row():
    """200 calls without a pause: each sums what the one before left, over ranks, exactly."""
    x = [np.zeros((32, 32), np.float32) for _ in range(2)]
    x[0][:], x[1][:] = 2.0 ** -100, 0
    cfg = TinyConfig(dtype="float32", rows=2, cols=32, pieces=8)
    found = run(rank_kernels.Relay, cfg, tasks=2, world=2, calls=200, X=x, Y=x[0], num_sms=8, **DEVICE)["X"]
    assert all((f == 2.0 ** -100 * 2.0 ** 199).all() for f in found)
