"""What a machine offers to ranks that share memory: asked of the driver, nothing is created but one small allocation."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys

from . import driver, libcuda
from ..errors import PknumbaError

__all__ = ["devices", "peers", "links", "ipc", "mps", "launcher", "mpi_facts", "gather"]

#: What to ask of a device: name -> number of the CUdevice_attribute.
_ASKED = {"compute_mode": 20, "vmm": 102, "vmm_posix_fd": 103, "vmm_fabric": 128, "multicast": 132, "ipc_events": 125}
_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}


def devices():
    """A dict for every visible device; raises UnsupportedError or DriverError where there is no driver or no device."""
    return [_device(index) for index in range(driver.device_count())]


def _device(index):
    info, handle = driver.device_info(index), ctypes.c_int()
    libcuda.call("cuDeviceGet", ctypes.byref(handle), index)
    found = {"index": index, "name": info.name, "uuid": info.uuid, "pci": _pci(handle), "sms": info.sms,
             "capability": list(info.capability), "memory_bytes": info.total_bytes, "mps": info.mps}
    found.update({name: driver._attribute(number, handle) for name, number in _ASKED.items()})
    found["compute_mode"] = _MODES.get(found["compute_mode"], str(found["compute_mode"]))
    return {**found, **{name: bool(found[name]) for name in _ASKED if name != "compute_mode"}}


def _pci(handle):
    """Bus address in nvidia-smi's way of writing it; "" where the driver does not say."""
    text = ctypes.create_string_buffer(32)
    try:
        libcuda.call("cuDeviceGetPCIBusId", text, 32, handle)
    except PknumbaError:
        return ""
    return text.value.decode().lower()


def peers(count):
    """For every pair of devices what kernels of one may do with memory of the other: "self", "atomics" (loads, stores and
    atomic additions), "access" (loads and stores) or "no"."""
    return [["self" if a == b else _reach(a, b) for b in range(count)] for a in range(count)]


def _reach(a, b):
    value = ctypes.c_int()
    libcuda.call("cuDeviceCanAccessPeer", ctypes.byref(value), a, b)
    if not value.value:
        return "no"
    try:
        libcuda.call("cuDeviceGetP2PAttribute", ctypes.byref(value), 3, a, b)     # native atomics
    except PknumbaError:
        return "access"
    return "atomics" if value.value else "access"


def links(pcis):
    """How the devices at these bus addresses are connected, in the words of ``nvidia-smi topo -m`` (NV18, PIX, SYS ...).

    Returns a matrix, or None where nvidia-smi cannot be asked.
    """
    order = _smi("--query-gpu=index,pci.bus_id", "--format=csv,noheader")
    numbers = {}
    for line in (order or "").splitlines():
        index, _, bus = line.partition(",")
        numbers[_short(bus)] = index.strip()
    names = [f"GPU{numbers.get(_short(pci))}" for pci in pcis]
    rows, head = {}, None
    for line in (_smi("topo", "-m") or "").splitlines():
        cells = line.replace("\033[4m", "").replace("\033[0m", "").split()
        if head is None and cells[:1] == ["GPU0"]:
            head = cells
        elif head and cells and cells[0].startswith("GPU") and cells[0][3:].isdigit():
            rows[cells[0]] = dict(zip(head, cells[1:]))
    if not rows or any(n not in rows for n in names):
        return None
    return [[rows[a].get(b, "?") for b in names] for a in names]


def _short(pci):
    """A bus address without its domain, which tools write in different lengths."""
    return pci.strip().lower().rpartition(":")[0].rpartition(":")[2] + ":" + pci.strip().lower().rpartition(":")[2]


def _smi(*arguments):
    if not shutil.which("nvidia-smi"):
        return None
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def driver_version():
    """(version of the installed driver or "", newest CUDA that it runs, such as "13.0")."""
    newest = driver.version()
    said = (_smi("--query-gpu=driver_version", "--format=csv,noheader") or "").splitlines()
    return said[0].strip() if said else "", f"{newest // 1000}.{newest % 1000 // 10}"


def mps():
    """What this process would find of CUDA's multi-process service: dict(control, pipe, share)."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
    return {"control": bool(shutil.which("nvidia-cuda-mps-control")), "pipe": pipe,
            "running": bool(pipe) and os.path.exists(os.path.join(pipe, "control")),
            "share": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")}


def ipc(device, comm=None):
    """Whether memory of this process can be shown to others, tried with 2 MiB: "" if it can, else why not.

    Args:
        comm: communicator of the ranks on this node, each of which then maps its neighbour's memory and reads it. Collective.
    """
    why, own, offer = "", None, None
    rank, size = (comm.rank, comm.size) if comm else (0, 1)
    with driver.using(device):
        try:
            own = driver.alloc(driver.IPC_GRANULARITY, about="doctor")
            driver.memset_u32(own, 0x600D + rank, 1)
            driver.synchronize()
            offer = driver.ipc_export(own)
        except PknumbaError as error:
            why = str(error)
        offers = comm.allgather(offer) if comm else [offer]
        peer = (rank + 1) % size
        if not why and size > 1 and offers[peer] is not None:
            why = _read_neighbour(offers[peer], 0x600D + peer)
        if comm:
            comm.barrier()
        if own is not None:
            driver.free(own)
    return why


def _read_neighbour(offer, value):
    try:
        mapped = driver.ipc_open(offer)
        seen = int.from_bytes(driver.copy_out(mapped, 4), "little")
        driver.ipc_close(mapped)
    except PknumbaError as error:
        return str(error)
    return "" if seen == value else f"memory of a neighbour: read {seen:#x} instead of {value:#x}. Its mapping is wrong. Report it."


def launcher():
    """(rank, size) that mpirun, srun or torchrun gave this process; (0, 1) alone."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMIX_RANK", ""), ("PMI_RANK", "PMI_SIZE"),
                       ("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE")):
        if os.environ.get(rank, "").isdigit() and os.environ.get(size or rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size]) if size else 2
    return 0, 1


def mpi_facts():
    """dict(mpi4py, library, mpirun, engines) of the MPI that ``World.mpi`` would use. Raises UnsupportedError without one."""
    from . import mpi
    from .nodes.choice import engines
    found = mpi.library()
    import mpi4py
    return {"engines": [list(engine) for engine in engines()],
            "mpi4py": mpi4py.__version__, "library": found.Get_library_version().partition(",")[0].strip("\0 \n"),
            "mpirun": shutil.which("mpirun") or shutil.which("mpirun", path=os.path.dirname(sys.executable)) or ""}


def gather(make):
    """``make(comm of this node)`` of every MPI rank, in rank order: [(host, number on the node, what it made)]. Collective."""
    from . import mpi
    found = mpi.library()
    node = found.COMM_WORLD.Split_type(found.COMM_TYPE_SHARED)
    try:
        return found.COMM_WORLD.allgather((socket.gethostname(), node.rank, make(node)))
    finally:
        node.Free()
