"""Compiled kernels on disk, so that a second process need not load numba.

A file's name is a digest of everything that the code depends on: pknumba's own sources, the kernel's, its configuration,
and the versions of the compilers. Files are written whole and renamed, so that any number of processes may start on an
empty cache; a damaged file is ignored and written again.
"""

import hashlib
import inspect
import json
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("numba-cuda", "numba", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink")
_ROOT = Path(__file__).resolve().parent.parent
_digests = {}
_compiled = {}


def directory():
    """Where compiled kernels lie: PKNUMBA_CACHE_DIR, else XDG_CACHE_HOME/pknumba or ~/.cache/pknumba. None if it cannot be used."""
    chosen = os.environ.get("PKNUMBA_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(os.environ["HOME"], ".cache") if os.environ.get("HOME") else None)
        chosen = os.path.join(base or os.path.join(tempfile.gettempdir(), f"pknumba-{os.getuid()}"), "pknumba")
    try:
        os.makedirs(chosen, mode=0o700, exist_ok=True)
    except OSError:
        return None
    return chosen if os.stat(chosen).st_uid == os.getuid() and os.access(chosen, os.W_OK | os.R_OK) else None


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _source_digest(path):
    if path not in _digests:
        _digests[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _digests[path]


def key(kernel, cfg):
    """The name under which that kernel and configuration are kept."""
    own = [p for part in ("lowering", "primitives", "templates") for p in sorted((_ROOT / part).glob("*.py"))] + [_ROOT / "tiles.py"]
    theirs = sorted({inspect.getsourcefile(c) for c in kernel.__mro__ if c is not object} | {inspect.getsourcefile(type(cfg))})
    parts = [_source_digest(str(p)) for p in (*own, *theirs)]
    parts += [kernel.__module__, kernel.__qualname__, repr(cfg), sys.version.split()[0], *(_version(p) for p in _PACKAGES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def compiled(kernel, cfg, make_plan):
    """(cubin, record) of a kernel: from this process, from disk, or built from ``make_plan()`` and kept.

    Raises: CompileError, ContractError, ConfigError.
    """
    if (kernel, cfg) in _compiled:
        return _compiled[kernel, cfg]
    folder = directory()
    name = key(kernel, cfg) if folder else None
    found = _read(folder, name) if folder else None
    if found is None:
        from . import build
        found = build(make_plan())
        if folder:
            _write(folder, name, *found)
    _compiled[kernel, cfg] = found
    return found


def _read(folder, name):
    try:
        path = os.path.join(folder, name + ".kernel")
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_uid != os.getuid():
                return None
            digest, header, cubin = f.read().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    if hashlib.sha256(header + b"\n" + cubin).hexdigest().encode() != digest:
        return None
    return cubin, json.loads(header)


def _write(folder, name, cubin, record):
    body = json.dumps(record).encode() + b"\n" + cubin
    try:
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as f:
            f.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(temporary, os.path.join(folder, name + ".kernel"))
    except OSError:
        pass                                    # a full or read-only disk costs time, not correctness
