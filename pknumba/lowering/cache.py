"""Compiled kernels on disk, so that a second process need not load numba.

A file's name is a digest of everything that the code depends on: pknumba's own sources, those of the kernel and of what its
roles call, the constants that they use, its configuration, and the versions of the compilers. Files are written whole and
renamed, so that any number of processes may start on an empty cache; a damaged file is ignored and written again.
"""

import contextlib
import hashlib
import inspect
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

from . import bundle
from .variant import tag

_PACKAGES = ("numba-cuda", "numba", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink")
_ROOT = Path(__file__).resolve().parent.parent
_OWN = [_ROOT / "tiles.py", *(p for part in ("lowering", "primitives", "templates") for p in sorted((_ROOT / part).glob("*.py")))]
_PLAIN = (int, float, str, bytes, tuple, type(None))
_digests = {}
_compiled = {}
_lock = threading.RLock()                       # ranks may be threads, and neither numba nor our lowering is for several


def directory():
    """Where compiled kernels lie: PKNUMBA_CACHE_DIR, else XDG_CACHE_HOME/pknumba or ~/.cache/pknumba. None if it cannot be used."""
    chosen = os.environ.get("PKNUMBA_CACHE_DIR")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or (os.path.join(os.environ["HOME"], ".cache") if os.environ.get("HOME") else None)
        chosen = os.path.join(base or os.path.join(tempfile.gettempdir(), f"pknumba-{os.getuid()}"), "pknumba")
    try:
        os.makedirs(chosen, mode=0o700, exist_ok=True)
        ours = os.stat(chosen).st_uid in (os.getuid(), 0)
    except OSError:
        return None
    return chosen if ours and os.access(chosen, os.R_OK | os.X_OK) else None


def _version(package):
    from importlib.metadata import PackageNotFoundError, version        # not before: ranks of the interpreter start sooner without
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _source_digest(path):
    if path not in _digests:
        _digests[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _digests[path]


def _source_of(thing):
    """Digest of the file that a class or function comes from, or its text where that is no file (a notebook's cell)."""
    file = inspect.getsourcefile(thing)
    return _source_digest(file) if file and os.path.isfile(file) else inspect.getsource(thing)


def _collect(name, thing, found):
    """Add what ``thing`` is, and what its functions use, to ``found``: {name: text}."""
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    if inspect.ismodule(thing):
        if str(getattr(thing, "__file__", "")).endswith(".py"):
            found[name] = _source_digest(thing.__file__)
    elif inspect.isclass(thing) or inspect.isfunction(thing):
        name = f"{thing.__module__}.{thing.__qualname__}"
        if name in found or thing.__module__ == "builtins":
            return
        try:
            if Path(inspect.getsourcefile(thing)) in _OWN:
                return
            found[name] = _source_of(thing)
        except (OSError, TypeError):            # written in C
            found[name] = ""
        if inspect.isfunction(thing):
            used = inspect.getclosurevars(thing)
            inside = {**used.globals, **used.nonlocals}
        else:
            inside = {**{c.__name__: c for c in thing.__bases__}, **{k: v for k, v in vars(thing).items() if not k.startswith("__")}}
        for label, value in inside.items():
            _collect(f"{name}: {label}", value, found)
    elif isinstance(thing, _PLAIN):
        found[name] = repr(thing)


def sources(kernel, cfg):
    """{name: digest or text} of what the code of a kernel depends on; None for a kernel whose source cannot be found."""
    found = {str(p): _source_digest(str(p)) for p in _OWN}
    try:
        for c in (kernel, type(cfg)):
            found[c.__name__] = _source_of(c)
            _collect("", c, found)
    except (OSError, TypeError):
        return None
    return found


def key(kernel, cfg):
    """The name under which that kernel and configuration are kept; None for a kernel whose source cannot be found."""
    found = sources(kernel, cfg)
    if found is None:
        return None
    parts = [f"{name}={found[name]}" for name in sorted(found)]
    parts += [kernel.__module__, kernel.__qualname__ + tag(), repr(cfg), sys.version.split()[0], *(_version(p) for p in _PACKAGES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def compiled(kernel, cfg, make_plan):
    """(cubin, record) of a kernel: from this process, from a bundle, from disk, or built from ``make_plan()`` and kept.

    Raises: CompileError, ContractError, ConfigError.
    """
    with _lock:
        known = kernel, cfg, tag()
        if known not in _compiled:
            bundle.record(kernel, cfg)
            _compiled[known] = bundle.find(kernel, cfg) or _kept(kernel, cfg, make_plan)
        return _compiled[known]


def _kept(kernel, cfg, make_plan):
    """(cubin, record) from disk, or built and kept there."""
    folder, name = directory(), key(kernel, cfg)
    found = _read(folder, name) if folder and name else None
    if found is None:
        from . import build
        try:
            found = build(make_plan())
        except ModuleNotFoundError as why:
            raise bundle.explain(kernel, cfg, why) from why
        if folder and name:
            _write(folder, name, *found)
    return found


def _read(folder, name):
    try:
        path = os.path.join(folder, name + ".kernel")
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_uid not in (os.getuid(), 0):
                return None
            digest, header, cubin = f.read().split(b"\n", 2)
    except (OSError, ValueError):
        return None
    if hashlib.sha256(header + b"\n" + cubin).hexdigest().encode() != digest:
        return None
    return cubin, json.loads(header)


def _write(folder, name, cubin, record):
    body, temporary = json.dumps(record).encode() + b"\n" + cubin, None
    try:
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as f:
            f.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(temporary, os.path.join(folder, name + ".kernel"))
    except OSError:                             # a full or read-only disk costs time, not correctness
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
