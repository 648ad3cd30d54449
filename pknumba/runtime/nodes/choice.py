"""Which engine carries data between nodes: what is installed, in order of preference, unless the caller says."""

import os
import re

from .over_hub import HubEngine
from .over_mpi import CudaAware, HostEngine, Staged, is_cuda_aware
from .over_nccl import NcclEngine, importable
from .. import driver
from ..mpi import library
from ...errors import ConfigError, UnsupportedError

__all__ = ["NAMES", "engines", "make_engine", "wanted"]

#: In order of preference, on a GPU.
NAMES = ("nccl", "cuda-mpi", "mpi")


def wanted(given):
    """Name of the engine that the option or PKNUMBA_ENGINE asks for; "auto" without."""
    name = given or os.environ.get("PKNUMBA_ENGINE") or "auto"
    if name not in (*NAMES, "auto"):
        raise ConfigError(f"World: engine = {name!r}. It is {', '.join(NAMES)} or auto. Look at PKNUMBA_ENGINE.", field="engine")
    return name


def engines():
    """What this process could use between nodes: a list of (name, usable, why not or what it is), best first. It starts MPI."""
    gpu, no_gpu = driver.available()
    ok, why = importable()
    found = [("nccl", ok and gpu, no_gpu if ok and not gpu else why)]
    try:
        mpi = library()
    except UnsupportedError as error:
        return [*found, ("cuda-mpi", False, str(error)), ("mpi", False, str(error))]
    aware, name = is_cuda_aware(mpi), re.split("[,\n]", mpi.Get_library_version())[0].strip("\0 ")
    found.append(("cuda-mpi", aware and gpu, f"{name} is built without CUDA" if not aware else name if gpu else no_gpu))
    return [*found, ("mpi", True, f"{name}; device memory is staged through pinned host memory" if gpu else f"{name}, NumPy arrays")]


def make_engine(name, link, layout, here, executor):
    """The engine of that name, or the best for "auto": the same kind on every rank. Collective."""
    if hasattr(link, "hub"):
        return HubEngine(link, layout, here)
    if executor == "interpreter":
        if name not in ("mpi", "auto"):
            raise UnsupportedError(f"World: engine {name}. The interpreter works on NumPy arrays. Use engine mpi or auto.")
        return HostEngine(link, layout, here)
    if not hasattr(link, "mpi"):
        if name not in ("nccl", "auto"):
            raise UnsupportedError(f"World.torch: engine {name}. Processes that torchrun starts have no MPI. Use engine nccl, or World.mpi "
                                   "under mpirun.")
        return NcclEngine(link, layout, here)
    if name == "auto":
        mine = {"nccl": importable()[0], "cuda-mpi": is_cuda_aware(link.mpi), "mpi": True, "device": here.info.uuid}
        said = link.allgather(mine, "World.mpi")
        alone = len({one["device"] for one in said}) == len(said)       # NCCL refuses ranks that share a GPU
        name = next(n for n in NAMES if all(one[n] for one in said) and (alone or n != "nccl"))
    return {"nccl": NcclEngine, "cuda-mpi": CudaAware, "mpi": Staged}[name](link, layout, here)
