"""The pipelines of scripts/ and kernels compiled ahead of time, on a GPU."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from .test_gemm_all_reduce_gpu import bounded, environment

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent.parent

#: Products and a sum, right to the last bit, on one rank and on two. On the interpreter it is told the multiprocessors of an H200.
PROGRAM = """
import sys
import numpy as np
from pknumba import World, all_reduce, gemm, gemm_all_reduce
def numbers(x):
    return x.get() if hasattr(x, "get") else np.asarray(x)
def main(world):
    rng = np.random.default_rng(0)
    A, B = (world.asarray(rng.integers(-3, 4, shape).astype(np.float16)) for shape in ((256, 128), (128, 256)))
    right = numbers(A).astype(np.float64) @ numbers(B).astype(np.float64)
    found = gemm(world, A, B), gemm_all_reduce(world, A, B), all_reduce(world, A)
    world.synchronize()                             # a wait that outlasted its limit is a HangError here, not a wrong sum below
    for made, wanted in zip(found, (right, right * world.size, numbers(A) * world.size)):
        assert (numbers(made) == wanted).all(), (made.shape, (numbers(made) != wanted).sum())
for ranks in (1, 2):
    more = {"num_sms": 132 // ranks} if executor == "interpreter" else {}
    World.local(ranks, executor=executor, **more).run(main)
print("compilers:", sorted({m.partition(".")[0] for m in sys.modules} & {"numba", "llvmlite"}), "PASS")
"""
#: Nothing of numba can be imported.
WITHOUT = """
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "numba_cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Forbidden())
"""


def passes(*command, seconds=80, **env):
    code, out = bounded([*map(str, command)], environment(**env), seconds)
    print(out[-3000:])
    assert code == 0 and "PASS" in out, out[-3000:]
    return out


@pytest.mark.parametrize("ranks", [1, 2])
def test_cupy_in_and_out_on_one_stream(ranks):
    pytest.importorskip("cupy")
    out = passes(sys.executable, ROOT / "scripts/pipeline.py", "--executor", "gpu", "--world", ranks, "--m", 1000, "--n", 512, "--k", 264)
    assert "WAITED" not in out


@pytest.mark.parametrize("ranks", [1, 2])
def test_arrays_change_hands(ranks):
    out = passes(sys.executable, ROOT / "scripts/exchange.py", "--executor", "gpu", "--world", ranks)
    assert "torch" in out or "cupy" in out


def test_torch_layers_on_one_rank():
    pytest.importorskip("torch")
    passes(sys.executable, ROOT / "scripts/tensor_parallel.py", "--executor", "gpu")


def test_torch_layers_over_mpi_ranks():
    pytest.importorskip("torch")
    if not shutil.which("nvidia-cuda-mps-control"):
        pytest.skip("no nvidia-cuda-mps-control")
    passes("bash", ROOT / "scripts/mps", "run", "-n", 2, "--", sys.executable, "-W", "ignore", ROOT / "scripts/tensor_parallel.py",
           "--executor", "gpu", PKNUMBA_MPS_DIR=tempfile.mkdtemp(prefix="pk-"))         # nobody else's service, with a short name


def test_torch_layers_over_torchrun_ranks():
    """No MPI: torchrun's processes, which take turns on one GPU."""
    pytest.importorskip("torch")
    passes(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
           ROOT / "scripts/tensor_parallel.py", "--executor", "gpu", OMP_NUM_THREADS="1")


def test_ahead_of_time(tmp_path):
    """Recorded on the interpreter and compiled by processes that see no GPU, run by one that finds no numba."""
    wanted, bundle = tmp_path / "wanted.jsonl", tmp_path / "kernels.pkb"
    blind, program = environment(CUDA_VISIBLE_DEVICES="", PKNUMBA_RECORD=str(wanted)), tmp_path / "program.py"
    program.write_text("executor = 'interpreter'\n" + PROGRAM)
    code, out = bounded([sys.executable, str(program)], blind, 60)
    assert code == 0 and "PASS" in out, out
    code, out = bounded([sys.executable, "-m", "pknumba", "compile", "--recorded", str(wanted), "--out", str(bundle)],
                        environment(CUDA_VISIBLE_DEVICES=""), 60)
    print(out)
    assert code == 0, out
    program.write_text(WITHOUT + "executor = 'gpu'\n" + PROGRAM)
    out = passes(sys.executable, program, PKNUMBA_BUNDLE=str(bundle), PKNUMBA_CACHE_DIR=str(tmp_path / "empty"))
    assert "compilers: []" in out


def test_the_doctor_finds_the_gpu():
    code, out = bounded([sys.executable, "-m", "pknumba", "doctor", "--executor", "gpu"], environment(), 60)
    print(out)
    assert code == 0 and "ready: pknumba runs here on the GPU" in out and "works (2 MiB exported)" in out
