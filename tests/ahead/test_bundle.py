"""Kernels compiled ahead of time: what a bundle holds, and that a machine without a compiler launches from it."""

import itertools
import json
import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

from pknumba import errors
from pknumba.__main__ import main
from pknumba.ahead.plans import recorded, wanted
from pknumba.config import CommConfig, GemmAllReduceConfig, GemmConfig
from pknumba.kernels import AllReduce, Gemm, GemmAllReduce
from pknumba.lowering import bundle, cache
from pknumba.templates.call import compiled

from ..runtime.conftest import stub_library  # noqa: F401 - fixture

#: A program that must not find a compiler: its call of gemm is launched, on the stand-in for a driver.
WITHOUT = """
    import sys

    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("numba", "llvmlite", "cuda", "numba_cuda"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Forbidden())
    import numpy as np
    from pknumba import GemmConfig, World, errors, gemm
    world = World.local(1, executor="gpu")
    A, B = world.asarray(np.ones((128, 64), np.float16)), world.asarray(np.ones((64, 128), np.float16))
    config = GemmConfig(tile_m=int(sys.argv[1]), tile_n=128, consumers=1)
    try:
        gemm(world, A, B, config=config)
        print("launched", sorted(m for m in sys.modules if m.partition(".")[0] in ("numba", "llvmlite", "cuda")))
    except errors.CompileError as error:
        print(error)
"""


def run(tmp_path, *arguments, **env):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(WITHOUT))
    done = subprocess.run([sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PKNUMBA_CACHE_DIR": str(tmp_path / "cache"), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle with one GEMM, as the command writes it."""
    path = tmp_path_factory.mktemp("ahead") / "gemm.pkb"
    assert main(["compile", "gemm", "--dtype", "float16", "--set", "tile_m=64", "tile_n=128", "consumers=1", "b_transposed=false",
                 "--out", str(path)]) == 0
    return path


@pytest.mark.ptx
def test_it_runs_without_a_compiler(made, tmp_path, stub_library):  # noqa: F811
    env = {"PKNUMBA_BUNDLE": str(made), "PKNUMBA_LIBCUDA": stub_library}
    assert run(tmp_path, 64, **env) == "launched []\n"
    other = run(tmp_path, 128, **env)
    assert other.startswith("Gemm: GemmConfig(") and "is not in " + str(made) in other and "python -m pknumba compile" in other


@pytest.mark.ptx
def test_what_it_holds(made):
    with zipfile.ZipFile(made) as z:
        held = json.loads(z.read("kernels.json"))
        (name, entry), = held["kernels"].items()
        assert held["arch"] == "sm_90a" and entry["kernel"] == "pknumba.kernels.gemm:Gemm" and entry["record"]["spill"] == 0
        assert z.read(f"{name}.cubin")[:4] == b"\x7fELF"
    assert str(made) not in bundle.PATHS


@pytest.mark.ptx
def test_broken_bundles_are_refused(made, tmp_path):
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        bundle.use(__file__)
    damaged = tmp_path / "damaged.pkb"
    with zipfile.ZipFile(made) as z, zipfile.ZipFile(damaged, "w") as out:
        for name in z.namelist():
            out.writestr(name, z.read(name) if name.endswith(".json") else z.read(name)[:-8] + b"nonsense")
    cfg = GemmConfig(tile_m=64, tile_n=128, consumers=1, dtype="float16", b_transposed=False)
    os.environ["PKNUMBA_BUNDLE"] = str(damaged)
    try:
        with pytest.raises(errors.ConfigError, match="is damaged"):
            bundle.find(Gemm, cfg)
    finally:
        del os.environ["PKNUMBA_BUNDLE"]
    assert bundle.find(Gemm, cfg) is None, "no bundle in use"


def test_names_know_the_source_and_the_configuration_but_no_version(monkeypatch):
    cfg = GemmConfig()
    name = bundle.portable_key(Gemm, cfg)
    monkeypatch.setattr(cache, "_version", lambda package: "other")
    assert bundle.portable_key(Gemm, cfg) == name != bundle.portable_key(Gemm, cfg.replace(stages=3))
    monkeypatch.setattr(cache, "_source_digest", lambda path: "0" * 64)
    assert bundle.portable_key(Gemm, cfg) != name


def test_which_kernels_calls_want():
    """Of products the configuration that a call would choose, of a world of one rank the kernel of one GPU."""
    from pknumba.config import best
    found = wanted(GemmAllReduce, sizes=[(4096, 4096, 4096)], worlds=(1, 2), sms=132)
    inside = GemmAllReduce.inside
    assert all(k is inside or issubclass(k, Gemm) and not k.communicates() for k, _ in found)
    assert {(k is inside, c.b_transposed) for k, c in found} == set(itertools.product((True, False), repeat=2)), "both layouts of B"
    chosen = best(4096, 4096, 4096, 132, GemmAllReduceConfig(intra_sm=True), 2)
    assert any(c.tile_n == chosen.tile_n and c.comm_sms == 1 for k, c in found if k is GemmAllReduce.inside)
    kinds = wanted(AllReduce, dtypes=("float32",), ops=("max",))
    assert {k.__name__ for k, _ in kinds} >= {"AllReduce", "OneShot"} and {c.op for _, c in kinds} == {"max"}
    assert all(isinstance(c, CommConfig) and c.blocks == 1 for _, c in kinds)
    assert ("OneShot", CommConfig().unroll) in {(k.__name__, c.unroll) for k, c in kinds}, "small arrays take it as it comes"


def test_what_a_tuner_found_is_wanted_too(monkeypatch, tmp_path):
    """The machine that runs may know it by its card's name; the one that compiles has no card."""
    measured = dict(card="NVIDIA H200", sms=132, world=1, op="gemm", shape=[4096, 4096, 4096], dtype="bfloat16", us=1.0,
                    config=dict(tile_m=64, tile_n=128, stages=7, c_stages=1, consumers=1))
    (tmp_path / "tuning.jsonl").write_text(json.dumps(measured))
    monkeypatch.setenv("PKNUMBA_TUNING_FILE", str(tmp_path / "tuning.jsonl"))
    assert 7 in {c.stages for _, c in wanted(Gemm, sizes=[(4000, 4100, 4096)])}
    assert 7 not in {c.stages for _, c in wanted(Gemm, sizes=[(512, 512, 512)])}


def test_what_a_program_wanted_is_recorded(monkeypatch, tmp_path):
    path = tmp_path / "wanted.jsonl"
    monkeypatch.setenv("PKNUMBA_RECORD", str(path))
    monkeypatch.setattr(cache, "_compiled", {})
    monkeypatch.setattr(cache, "_kept", lambda kernel, cfg, make_plan: ("cubin", {}))
    compiled(GemmAllReduce, GemmAllReduceConfig(comm_sms=7))
    compiled(GemmAllReduce, GemmAllReduceConfig(comm_sms=9))
    assert recorded(path) == [(GemmAllReduce, GemmAllReduceConfig(comm_sms=1))]
    path.write_text("nonsense")
    with pytest.raises(errors.ConfigError, match="cannot be used"):
        recorded(path)


#: Calls whose configurations follow from shapes, from memory and from multiprocessors.
CALLS = """
    import numpy as np
    from pknumba import World, all_reduce, gemm
    world = World.local(1)
    half = lambda *shape: world.asarray(np.ones(shape, np.float16))
    gemm(world, half(256, 64), half(64, 384))
    all_reduce(world, half(100))
    print(world.executor, world.num_sms)
"""


@pytest.mark.ptx
def test_the_interpreter_records_what_a_gpu_would_compile(tmp_path, stub_library):  # noqa: F811
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(CALLS))
    found = {}
    for executor in ("interpreter", "gpu"):
        path = tmp_path / f"{executor}.jsonl"
        done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=150, env={
            **os.environ, "PKNUMBA_EXECUTOR": executor, "PKNUMBA_NUM_SMS": "132", "PKNUMBA_RECORD": str(path),
            "PKNUMBA_LIBCUDA": stub_library})
        assert done.returncode == 0 and done.stdout == f"{executor} 132\n", done.stdout + done.stderr
        found[executor] = recorded(path)
    assert len(found["gpu"]) == 2 and set(found["gpu"]) == set(found["interpreter"])


@pytest.mark.parametrize("arguments, said", [(["gemm", "--arch", "sm_80"], "no architecture sm_80"), ([], "nothing to do"),
                                             (["nonsense"], "no operator nonsense"), (["attention"], "can be recorded"),
                                             (["all_reduce_rmsnorm"], "can be recorded"), (["gemm", "--set", "tile_m=7"], "tile_m = 7")])
def test_wrong_requests(arguments, said, capsys):
    assert main(["compile", *arguments]) == 2
    assert said in capsys.readouterr().err
