"""The cache of compiled kernels: what its keys depend on, and what may go wrong on a disk."""

import functools
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pknumba import lowering
from pknumba.config import GemmAllReduceConfig, GemmConfig
from pknumba.kernels import Gemm, GemmAllReduce
from pknumba.lowering import cache

ROOT = Path(__file__).resolve().parents[2]
RECORD = {"symbol": "k", "boxes": {"A": [[64, 64, 128]]}, "threads": 256}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has compiled nothing."""
    monkeypatch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache"


def forget(monkeypatch):
    monkeypatch.setattr(cache, "_compiled", {})
    monkeypatch.setattr(cache, "_digests", {})


@pytest.fixture
def builds(monkeypatch):
    """Instead of the compiler: a list that grows by one with each build."""
    made = []

    def build(plan):
        time.sleep(0.01)
        made.append(plan)
        return b"\x7fELF\n\0cubin " + str(plan).encode(), dict(RECORD)
    monkeypatch.setattr(lowering, "build", build)
    return made


def load(name="plan"):
    return cache.compiled(Gemm, GemmConfig(), lambda: name)


# ---- keys

def test_key_depends_on_the_configuration():
    keys = {cache.key(Gemm, cfg) for cfg in (GemmConfig(), GemmConfig(stages=3), GemmConfig(ping_pong=True), GemmConfig(dtype="float16"),
                                             GemmConfig(b_transposed=False), GemmAllReduceConfig())}
    assert len(keys) == 6 and cache.key(GemmAllReduce, GemmAllReduceConfig()) not in keys
    assert cache.key(Gemm, GemmConfig()) in keys


def test_key_depends_on_versions(monkeypatch):
    before = cache.key(Gemm, GemmConfig())
    monkeypatch.setattr(cache, "_version", lambda package: "99" if package == "numba" else "1")
    assert cache.key(Gemm, GemmConfig()) != before


def test_key_depends_on_our_sources(monkeypatch, tmp_path):
    before = cache.key(Gemm, GemmConfig())
    for path in cache._OWN:
        digest = cache._source_digest(str(path))
        monkeypatch.setitem(cache._digests, str(path), "changed")
        assert cache.key(Gemm, GemmConfig()) != before, path
        monkeypatch.setitem(cache._digests, str(path), digest)
    assert cache.key(Gemm, GemmConfig()) == before


KERNEL = """
from pknumba.config import GemmConfig
from pknumba.kernels import Gemm
from helper import LIMIT, scale
import numpy as np

def make(shift):
    class Mine(Gemm):
        @staticmethod
        def storer(cfg, g, s, task):
            unused = np.float32, LIMIT, scale(shift)
            Gemm.storer(cfg, g, s, task)
    return Mine

Mine = make(1)
"""
HELPER = "LIMIT = 3\n\ndef scale(x):\n    return other(x)\n\ndef other(x):\n    return x * TWO\n\nTWO = 2\n"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Function (kernel's source, helper's source) -> module, loaded afresh."""
    def write(kernel=KERNEL, helper=HELPER):
        forget(monkeypatch)
        for name, text in (("helper", helper), ("mine", kernel)):
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(text, str(path), "exec"), module.__dict__)
        return module
    return write


@pytest.mark.parametrize("change", [
    dict(kernel=KERNEL.replace("unused", "other")), dict(helper=HELPER.replace("3", "4")),
    dict(helper=HELPER.replace("TWO = 2", "TWO = 5")),
    dict(helper=HELPER.replace("other(x)", "other(x + 1)", 1)), dict(kernel=KERNEL.replace("make(1)", "make(2)"))])
def test_key_depends_on_what_a_role_uses(made, change):
    key = cache.key(made().Mine, GemmConfig())
    assert key == cache.key(made().Mine, GemmConfig())
    assert key != cache.key(made(**change).Mine, GemmConfig())


def test_kernels_of_one_factory(made):
    """Same name, same source, another value in the closure."""
    module = made()
    assert cache.key(module.make(1), GemmConfig()) == cache.key(module.Mine, GemmConfig()) != cache.key(module.make(7), GemmConfig())


def test_kernel_without_a_file(folder, builds, monkeypatch):
    """Typed into a prompt: compiled, kept in this process, not on disk."""
    space = {"Gemm": Gemm, "__name__": "prompt"}
    exec("class Typed(Gemm):\n    pass", space)
    assert cache.key(space["Typed"], GemmConfig()) is None
    for _ in range(2):
        cubin, record = cache.compiled(space["Typed"], GemmConfig(), lambda: "typed")
    assert cubin.endswith(b"typed") and len(builds) == 1 and not list(folder.iterdir())


# ---- files

def test_kept_and_found(folder, builds, monkeypatch):
    first = load()
    assert first == load() and len(builds) == 1                  # this process
    forget(monkeypatch)
    assert first == load() and len(builds) == 1                  # the disk
    assert [p.suffix for p in folder.iterdir()] == [".kernel"]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


def kernel_file(folder):
    path, = folder.iterdir()
    return path


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:20], lambda data: data[:-1], lambda data: data + b"x", lambda data: b"\n" * 50,
    lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:], lambda data: data[:-3] + bytes([data[-3] ^ 128]) + data[-2:],
    lambda data: b"0" * 64 + data[64:], lambda data: os.urandom(len(data))])
def test_damaged_file(folder, builds, monkeypatch, damage):
    first, path = load(), kernel_file(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    forget(monkeypatch)
    assert load() == first and len(builds) == 2
    assert path.read_bytes() == whole, "written again"


def test_file_of_somebody_else(folder, builds, monkeypatch):
    """Whole, but owned by another user who may have put anything into it."""
    load()
    if os.getuid() == 0:
        os.chown(kernel_file(folder), 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        monkeypatch.setattr(cache, "directory", lambda: str(folder))
    forget(monkeypatch)
    load("again")
    assert len(builds) == 2


def test_a_folder_in_the_way(folder, builds, monkeypatch):
    load()
    path = kernel_file(folder)
    path.unlink()
    path.mkdir()
    forget(monkeypatch)
    load()
    assert len(builds) == 2 and [p.name for p in folder.iterdir()] == [path.name], "nothing half-written is left"


def test_disk_that_takes_nothing(folder, builds, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(cache.os, "replace", full)
    load()
    assert not list(folder.iterdir())
    monkeypatch.setattr(cache.tempfile, "mkstemp", full)
    forget(monkeypatch)
    assert load()[0].endswith(b"plan") and len(builds) == 2


def test_read_only_cache_is_read(folder, builds, monkeypatch):
    first = load()
    folder.chmod(0o500)
    try:
        forget(monkeypatch)
        assert load() == first and len(builds) == 1
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none/of/this"])
def test_no_folder_can_be_made(tmp_path, builds, monkeypatch, place):
    (tmp_path / "file").write_text("in the way")
    forget(monkeypatch)
    monkeypatch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path / place))
    assert cache.directory() is None and load()[0].endswith(b"plan")


def test_where(tmp_path, monkeypatch):
    for name in ("PKNUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "tmp"))
    assert cache.directory() == str(tmp_path / "tmp" / f"pknumba-{os.getuid()}" / "pknumba")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.directory() == str(tmp_path / "home" / ".cache" / "pknumba")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.directory() == str(tmp_path / "xdg" / "pknumba")
    monkeypatch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path / "own"))
    assert cache.directory() == str(tmp_path / "own")


def test_threads_build_once(folder, builds):
    """Ranks of one process ask for the same kernel at the same time."""
    got = []
    threads = [threading.Thread(target=lambda: got.append(load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and got == [got[0]] * 8


# ---- whole processes, the real compiler

SCRIPT = """
import hashlib, sys, time
from pknumba.config import GemmConfig
from pknumba.kernels import Gemm
from pknumba.lowering import cache
start, cfg = time.perf_counter(), GemmConfig(tile_m=64, tile_n=32, stages=2, c_stages=1, consumers=1)
cubin, record = cache.compiled(Gemm, cfg, lambda: Gemm.plan(cfg))
took = time.perf_counter() - start
loaded = sorted({m.split(".")[0] for m in sys.modules} & {"numba", "llvmlite", "cuda", "cupy", "torch", "mpi4py"})
print(hashlib.sha256(cubin).hexdigest(), record["threads"], record["spill"], f"{took:.3f}", *loaded)
"""


@pytest.mark.ptx
@pytest.mark.timeout(300)
def test_eight_compilers_on_an_empty_cache(folder):
    start = functools.partial(subprocess.Popen, [sys.executable, "-W", "ignore", "-c", SCRIPT], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, cwd=ROOT)
    running = [start() for _ in range(8)]
    answers = [p.communicate(timeout=240) for p in running]
    assert all(p.returncode == 0 for p in running), answers
    for out, _ in answers:
        assert out.split()[1:3] == ["256", "0"]
    assert [p.suffix for p in folder.iterdir()] == [".kernel"], "one file, nothing half-written"
    warm = start()
    out, err = warm.communicate(timeout=60)
    digest, threads, spill, took, *loaded = out.split()
    assert loaded == [], f"a warm cache loads {loaded}"
    assert digest in {out.split()[0] for out, _ in answers} and digest == hashlib.sha256(cubin_of(folder)).hexdigest()
    print(f"from a warm cache: {took} s; cold: {', '.join(out.split()[3] for out, _ in answers)} s")


def cubin_of(folder):
    return kernel_file(folder).read_bytes().split(b"\n", 2)[2]
