"""The pipelines of scripts/: arrays of NumPy, CuPy and torch go in and out. Here on the CPU; tests/gpu runs the same on a GPU."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pknumba import World
from pknumba.runtime import dlpack
from pknumba.templates import Whole
from pknumba.templates.fast import empty_product

ROOT = Path(__file__).resolve().parent.parent.parent
CPU = ("--executor", "interpreter")


def run(script, *arguments):
    return subprocess.run([sys.executable, ROOT / "scripts" / script, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("world, shape", [(3, (65, 40, 48)), (1, (5, 3, 7))])
def test_numpy_in_and_out(world, shape):
    m, n, k = shape
    done = run("pipeline.py", *CPU, "--world", world, "--m", m, "--n", n, "--k", k)
    assert done.returncode == 0, done.stderr
    assert f"{m} x {n} x {k}, {world} ranks, interpreter" in done.stdout and done.stdout.count("PASS") == 1


def test_the_same_script_under_mpirun(mpirun):
    done = mpirun(2, "scripts/pipeline.py", *CPU, "--m", 33)
    assert done.returncode == 0 and done.stdout.count("PASS") == 1, done.stdout + done.stderr


def test_a_wrong_result_fails(tmp_path):
    """Rows of the second rank, normalised wrongly: the script must say so."""
    program = tmp_path / "wrong.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
                       "sys.argv[1:] = ['--executor', 'interpreter', '--m', '20']\n"
                       "import pipeline, launch\nright = pipeline.pipeline\n"
                       "pipeline.pipeline = lambda world, xp, x, *more, **named: right(world, xp, x if world.rank != 1 else x[::-1], "
                       "*more, **named)\n"
                       "sys.exit(launch.guarded('wrong.py', pipeline.main))\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "FAIL" in done.stdout, done.stderr


def test_arrays_change_hands():
    done = run("exchange.py", *CPU)
    assert done.returncode == 0 and "5 facts hold: PASS" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_symmetric_memory_is_given_away(dtype):
    """With its own address and strides, in bfloat16 too, which NumPy itself does not export; and the capsule keeps it alive."""
    with World.local(1, executor="interpreter") as world:
        shared = world.symmetric((3, 5), dtype)
        pointer, shape, strides, name, device, capsule = dlpack.read(shared)
        assert (pointer, shape, strides, name, device) == (shared.pointer, (3, 5), shared.strides, dtype, "cpu")
        before = len(dlpack._alive)
        del capsule
        assert dtype == "float32" or len(dlpack._alive) == before - 1


class Nameless:
    """An array that shows nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_result_for_arrays_that_have_only_dlpack():
    with World.local(1, executor="interpreter") as world:
        A, B = (Nameless(np.ones(shape, np.float16)) for shape in ((3, 5), (5, 7)))
        made = empty_product(Whole, world, A, B, None)
        assert made.shape == (3, 7) and made.dtype == np.float16
        assert empty_product(Whole, world, object(), B, None) is None, "the check says what is wrong with it"


def test_torch_layers():
    pytest.importorskip("torch")
    done = run("tensor_parallel.py", *CPU, "--hidden", 64, "--images", 128)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr


def test_torch_layers_without_torch(tmp_path):
    program = tmp_path / "without.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); sys.modules['torch'] = None; sys.argv[1:] = []\n"
                       "import tensor_parallel, launch\nsys.exit(launch.guarded('tensor_parallel.py', tensor_parallel.main))\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "torch is not installed" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["pipeline.py", "tensor_parallel.py", "exchange.py"])
def test_help(script):
    done = run(script, "--help")
    assert done.returncode == 0 and "python scripts/" + script in done.stdout
    bad = run(script, "--nonsense")
    assert bad.returncode == 2 and len(bad.stderr.splitlines()) == 1
