"""Kernels compiled ahead of time: one file that holds cubins, for machines without a compiler.

A kernel is found by what its code is made of (its sources, those that it calls, its configuration), not by the versions of what
compiled it: the machine that runs it need not have them. A kernel whose source has changed since is not found.
"""

import hashlib
import json
import os
import re
import zipfile

from .variant import tag
from ..errors import CompileError, ConfigError

__all__ = ["write", "read", "find", "use", "portable_key", "explain", "record", "PATHS"]

_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Bundles in use, beside those that PKNUMBA_BUNDLE names (separated by ":"); the first that has a kernel is taken.
PATHS = []
_opened, _noted = {}, set()


def portable_key(kernel, cfg):
    """The name under which a bundle keeps that kernel and configuration; None for one whose source cannot be found."""
    from . import cache
    found = cache.sources(kernel, cfg)
    if found is None:
        return None
    parts = sorted({text for text in found.values() if _DIGEST.fullmatch(text) or "\n" in text})      # files, and cells of notebooks
    return hashlib.sha256("\0".join([*parts, kernel.__qualname__ + tag(), repr(cfg)]).encode()).hexdigest()[:40]


def write(path, built, arch="sm_90a"):
    """Write a bundle. built: [(kernel, cfg, cubin, record)]. Returns how many kernels it holds."""
    entries, temporary = {}, f"{path}.{os.getpid()}"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle:
        for kernel, cfg, cubin, record in built:
            name = portable_key(kernel, cfg)
            if name is None:
                raise CompileError(f"{kernel.__name__}: its source cannot be found. A bundle knows kernels by their source. Put it in a "
                                   "file.")
            if name in entries:
                continue
            entries[name] = {"kernel": f"{kernel.__module__}:{kernel.__qualname__}", "config": repr(cfg), "record": record,
                             "sha256": hashlib.sha256(cubin).hexdigest()}
            bundle.writestr(f"{name}.cubin", cubin)
        bundle.writestr("kernels.json", json.dumps({"format": _FORMAT, "arch": arch, "kernels": entries}, indent=1))
    os.replace(temporary, path)
    return len(entries)


def read(path):
    """{name: entry} of a bundle; raises ConfigError for what is none."""
    try:
        with zipfile.ZipFile(path) as bundle:
            held = json.loads(bundle.read("kernels.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as why:
        raise ConfigError(f"bundle {path}: cannot be read ({why}). It is a file that python -m pknumba compile wrote. Look at "
                          "PKNUMBA_BUNDLE.") from None
    if held.get("format") != _FORMAT:
        raise ConfigError(f"bundle {path}: has format {held.get('format')}. This pknumba reads {_FORMAT}. Compile it anew.")
    return held["kernels"]


def use(path):
    """Take kernels from this bundle too. Raises ConfigError for what is none."""
    _opened[str(path)] = read(path)
    PATHS.append(str(path))


def _paths():
    return [*PATHS, *filter(None, os.environ.get("PKNUMBA_BUNDLE", "").split(os.pathsep))]


def find(kernel, cfg):
    """(cubin, record) of a kernel in the bundles in use; None without one that has it. Raises ConfigError for a broken bundle."""
    paths = _paths()
    name = portable_key(kernel, cfg) if paths else None
    for path in paths if name else ():
        if path not in _opened:
            _opened[path] = read(path)
        entry = _opened[path].get(name)
        if entry:
            with zipfile.ZipFile(path) as bundle:
                cubin = bundle.read(f"{name}.cubin")
            if hashlib.sha256(cubin).hexdigest() != entry["sha256"]:
                raise ConfigError(f"bundle {path}: {entry['kernel']} is damaged. Its digest differs. Copy or compile it anew.")
            return cubin, entry["record"]
    return None


def explain(kernel, cfg, why):
    """The CompileError for a kernel that is in no bundle where there is no compiler."""
    paths = ", ".join(_paths())
    where = f"is not in {paths}" if paths else "is in no bundle (PKNUMBA_BUNDLE names none)"
    return CompileError(f"{kernel.__name__}: {cfg} {where}, and {why.name} is not installed to compile it. A kernel is compiled "
                        "here or ahead of time, from the very sources that run. Add it (python -m pknumba compile), or install numba-cuda.",
                        kernel=kernel.__name__, config=cfg)


def record(kernel, cfg):
    """Note, in the file that PKNUMBA_RECORD names, that a program wants this kernel: what ``compile --recorded`` reads."""
    path = os.environ.get("PKNUMBA_RECORD")
    if path and (path, kernel, cfg) not in _noted:
        _noted.add((path, kernel, cfg))
        family = type(cfg)
        line = json.dumps({"kernel": [kernel.__module__, kernel.__qualname__], "config": [family.__module__, family.__qualname__],
                           "fields": vars(cfg)})
        with open(path, "a") as f:
            f.write(line + "\n")
