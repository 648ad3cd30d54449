"""What other users of the machine can see or do: nothing. Names that cannot be guessed, modes, owners, no pickles from files."""

import ast
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pknumba.interpreter import mpi, segments
from pknumba.lowering import cache

from .conftest import PRELUDE, ROOT, environment

SOURCES = [*sorted((ROOT / "pknumba").rglob("*.py")), *sorted((ROOT / "scripts").glob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]


class Alone:
    """A communicator of one rank."""

    rank, size = 0, 1

    def bcast(self, value):
        return value

    def allgather(self, value):
        return [value]

    def Barrier(self):
        pass


def test_shared_memory_has_no_name_once_it_is_used(monkeypatch):
    """While its file has a name: 128 random bits, mode 0600, whatever the umask; afterwards nothing in the folder."""
    seen, unlink = [], os.unlink

    def watch(path):
        seen.append((path, stat.S_IMODE(os.stat(path).st_mode)))
        unlink(path)

    monkeypatch.setattr(segments.os, "unlink", watch)
    mask = os.umask(0)
    try:
        arrays = [segments.share(Alone(), 4096)[0] for _ in range(2)]
    finally:
        os.umask(mask)
    assert all((a == 0).all() and a.flags.writeable for a in arrays)
    (first, one), (second, two) = seen
    assert one == two == 0o600 and first != second and not os.path.exists(first)
    assert all(re.fullmatch(r"pknumba-[0-9a-f]{32}", os.path.basename(path)) for path in (first, second))


def test_files_that_lock_are_private(monkeypatch):
    seen, unlink = [], os.unlink
    monkeypatch.setattr(mpi.os, "unlink", lambda path: (seen.append(stat.S_IMODE(os.stat(path).st_mode)), unlink(path)))
    os.close(mpi._lock_file(Alone()))
    assert seen == [0o600]


def test_the_cache_is_made_for_its_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    mask = os.umask(0)
    try:
        assert stat.S_IMODE(os.stat(cache.directory()).st_mode) == 0o700
        cache._write(cache.directory(), "name", b"cubin", {})
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat(tmp_path / "kernels" / "name.kernel").st_mode) == 0o600


def test_a_folder_of_another_user_is_no_cache(tmp_path, monkeypatch):
    """Its owner could put a kernel there under the name that is looked for. (A single file: tests/lowering/test_cache.py.)"""
    monkeypatch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path))
    assert cache.directory() == str(tmp_path)
    other = os.getuid() + 1
    if os.getuid() == 0:
        os.chown(tmp_path, other, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: other)
    assert cache.directory() is None


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


def test_nothing_is_unpickled_from_a_file():
    """np.load says allow_pickle=False; pickle.loads is for messages between the ranks of one job only."""
    for path in SOURCES:
        for node, name, options in calls(path):
            where = f"{path.name}:{node.lineno}"
            if name in ("np.load", "numpy.load"):
                assert options.get("allow_pickle") == "False", where
            assert name not in ("pickle.load", "torch.load", "joblib.load", "shelve.open", "marshal.load"), where
            assert name != "pickle.loads" or path.name == "mpi.py", where


def test_an_input_with_a_pickle_in_it_is_refused(tmp_path):
    """scripts/run.py --input: status 2, and what the pickle would have run has not been."""
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    held = np.empty(1, object)
    held[0] = Bomb()
    np.savez(tmp_path / "x.npz", A=held, B=np.ones((4, 4)))
    done = subprocess.run([sys.executable, ROOT / "scripts" / "run.py", "gemm", "--input", str(tmp_path / "x.npz")], env=environment(),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "allow_pickle=False" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(held))                            # so it would have been
    assert (tmp_path / "ran").exists()


def test_two_users_at_once(tmp_path):
    """Two jobs at once, of this user and another, told to use the same cache folder: both are right, and leave no file behind.

    The other user may read everything (or it could not start this Python), but has an identity of its own and writes only its own files.
    """
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can start a job of another user (with setpriv)")
    other = ["setpriv", "--securebits", "+no_setuid_fixup", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps",
             "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent("""
    from pknumba.lowering import cache
    with World.mpi(executor="interpreter") as world:
        shared()
        C = gemm_all_reduce(world, *arrays(world))
        say("sum", os.getuid(), cache.directory(), float(np.asarray(C, np.float32).sum()))
    """))
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    os.chown(folder, 65534, 65534)                              # what the other user's folder holds is not for this one to run
    command = [str(Path(sys.executable).parent / "mpirun"), "-n", "2", sys.executable, str(script)]
    how = dict(env=environment(HOME="/tmp", PKNUMBA_CACHE_DIR=str(folder)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
               cwd="/")
    jobs = [subprocess.Popen(words, **how) for words in (command, [*other, *command])]
    text = "".join(job.communicate(timeout=60)[0] for job in jobs)
    said = re.findall(r"sum (\d+) (\S+) (\S+)", text)
    assert [job.returncode for job in jobs] == [0, 0] and len({value for _, _, value in said}) == 1, text
    assert {(uid, place) for uid, place, _ in said} == {("0", "None"), ("65534", str(folder))}, text
    assert not [path for path in re.findall(r"/dev/shm/\S+", text) if os.path.exists(path)]
