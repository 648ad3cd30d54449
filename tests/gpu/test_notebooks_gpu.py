"""The notebooks run unchanged where there is a GPU: their programs then run on both, with the same results."""

import sys

import pytest

from .test_pipelines_gpu import ROOT, bounded, environment

pytestmark = pytest.mark.gpu
#: Notebooks, and how many of their programs also run on the GPU.
PROGRAMS = {"01": 0, "02": 0, "03": 1, "04": 1, "05": 8, "06": 1, "07": 0, "08": 2, "09": 2, "10": 1}


@pytest.mark.parametrize("number", sorted(PROGRAMS))
def test_the_same_on_the_gpu(number):
    path, = (ROOT / "notebooks").glob(f"{number}_*.py")
    code, out = bounded([sys.executable, "-W", "ignore", str(path)], environment(), 85)
    print(out[-3000:])
    assert code == 0 and out.count("the same on NVIDIA") == PROGRAMS[number], out[-3000:]
