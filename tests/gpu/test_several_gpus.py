"""Operators on several GPUs of one host: right against float64, call after call, in graphs and on two streams, over the link.

Processes are started as a user would, one rank a GPU, and two ranks a GPU under MPS. Ranks as threads play tests that the other files
have for one GPU, with all GPUs visible: rank r then works on GPU r.
"""

import sys
from pathlib import Path

import pytest

from .test_gemm_all_reduce_gpu import bounded
from .test_pipelines_gpu import environment, passes

pytestmark = [pytest.mark.multigpu, pytest.mark.timeout(400)]
HERE = Path(__file__).resolve().parent
MPS = HERE.parents[1] / "scripts" / "mps"

#: Programs that make many calls in a row, and how many.
PROGRAMS = {"many_calls": 1000, "many_fused": 1000, "many_collectives": 1000, "many_layers": 300, "many_attention": 300}
#: Files whose tests play ranks as threads, and which of them are played again here.
THREADS = ("gemm_all_reduce", "fused", "collectives", "norm", "moe", "spread_attention", "decode_attention")
AGAIN = "graph or streams or calls_in_a_row or clocks"


@pytest.fixture(scope="module")
def count():
    """How many GPUs there are: two at least."""
    from pknumba.runtime import driver
    found = driver.device_count() if driver.available()[0] else 0
    if found < 2:
        pytest.skip(f"{found} GPUs are visible; this takes two")
    return found


def alone(count):
    """Starts a rank on each GPU."""
    return "mpirun", "-n", count, sys.executable, "-W", "ignore"


def pairs(count):
    """Starts two ranks on each GPU, which run at the same time."""
    return "bash", MPS, "run", "-n", 2 * count, "--", sys.executable, "-W", "ignore"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("start", [alone, pairs])
def test_against_float64(start, dtype, count):
    passes(*start(count), HERE / "every_operator.py", "--dtype", dtype, seconds=180)


@pytest.mark.parametrize("program", PROGRAMS)
def test_many_calls(program, count):
    passes(*alone(count), HERE / f"{program}.py", "--calls", PROGRAMS[program], seconds=180)


@pytest.mark.parametrize("program", PROGRAMS)
def test_many_calls_of_two_ranks_on_each_gpu(program, count):
    passes(*pairs(count), HERE / f"{program}.py", "--calls", PROGRAMS[program] // 4, seconds=180)


def test_litmus(count):
    """A million payloads by ordinary stores and by the copy engine, each followed by a signal."""
    passes(*alone(count), HERE / "litmus.py", "--rounds", 1_000_000, seconds=180)


@pytest.mark.parametrize("name", THREADS)
def test_threads(name, count):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-k", AGAIN, str(HERE / f"test_{name}_gpu.py")]
    code, out = bounded(command, environment(), 300)
    assert code in (0, 5), out[-3000:]                   # 5: that file has no such test
