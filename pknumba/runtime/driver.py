"""Every call of the CUDA driver that pknumba makes, checked.

Memory, stream and module functions act on the calling thread's current context: see :func:`context`. Pointers, streams and
handles are plain integers; stream 0 is the legacy default stream. A refused call raises DriverError, whose ``code`` is the
CUresult; a machine that cannot do it at all raises UnsupportedError.
"""

import ctypes
import threading
from collections import namedtuple
from contextlib import contextmanager
from functools import partial

from . import libcuda
from ..errors import DriverError, UnsupportedError
from .libcuda import call

__all__ = ["available", "version", "device_count", "device_info", "DeviceInfo", "context", "make_current", "current_device",
           "using", "enable_peer_access", "synchronize", "alloc", "free", "alloc_host", "free_host", "device_of", "memory_info",
           "memset", "memset_u32", "copy", "copy_in", "copy_out", "copy_2d", "copier_2d", "ipc_export", "ipc_open", "ipc_close",
           "stream_create", "stream_destroy", "stream_synchronize", "stream_done", "load"]

_byref, _lock, _contexts, _infos = ctypes.byref, threading.Lock(), {}, {}

#: Bytes that allocations which other processes map are rounded up to: a mapping shares whole pages of this size.
IPC_GRANULARITY = 2 << 20


def available():
    """(True, "") if there is a driver and a device, else (False, why)."""
    try:
        count = device_count()
    except (UnsupportedError, DriverError) as why:
        return False, str(why)
    return (True, "") if count else (False, "CUDA: no device is visible. Look at CUDA_VISIBLE_DEVICES.")


def version():
    """The driver's CUDA version, such as 13000."""
    value = ctypes.c_int()
    call("cuDriverGetVersion", _byref(value))
    return value.value


def device_count():
    """How many devices this process sees."""
    value = ctypes.c_int()
    call("cuDeviceGetCount", _byref(value))
    return value.value


#: What a kernel's launcher wants to know of a device. ``sms``: multiprocessors this process may use (under MPS, its share);
#: ``capability``: (9, 0); ``shared_optin``: bytes of shared memory a block may have; ``mps``: whether contexts go through MPS.
DeviceInfo = namedtuple("DeviceInfo", "index name uuid sms capability shared_optin total_bytes l2_bytes cooperative mps")

_ATTRIBUTES = {"sms": 16, "major": 75, "minor": 76, "shared_optin": 97, "l2_bytes": 38, "cooperative": 95, "mps": 133}


def device_info(index):
    """The DeviceInfo of device number `index` (cached)."""
    if index not in _infos:
        device, total = ctypes.c_int(), ctypes.c_size_t()
        text, uuid = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16)
        call("cuDeviceGet", _byref(device), index, about=f"device {index}")
        call("cuDeviceGetName", text, 128, device)
        call("cuDeviceGetUuid", uuid, device)
        call("cuDeviceTotalMem_v2", _byref(total), device)
        get = {name: _attribute(number, device) for name, number in _ATTRIBUTES.items()}
        _infos[index] = DeviceInfo(index, text.value.decode(), uuid.raw.hex(), get["sms"], (get["major"], get["minor"]),
                                   get["shared_optin"], total.value, get["l2_bytes"], bool(get["cooperative"]), bool(get["mps"]))
    return _infos[index]


def _attribute(number, device):
    value = ctypes.c_int()
    try:
        call("cuDeviceGetAttribute", _byref(value), number, device)
    except DriverError:
        return 0  # a driver older than the attribute
    return value.value


def context(device):
    """Handle of the primary context of `device`, the one CuPy and torch use. It is retained once and kept."""
    with _lock:
        if device not in _contexts:
            handle = ctypes.c_void_p()
            call("cuDevicePrimaryCtxRetain", _byref(handle), device, about=f"device {device}")
            _contexts[device] = handle.value
        return _contexts[device]


def make_current(device):
    """Make the primary context of `device` the current one of this thread."""
    handle, now = context(device), ctypes.c_void_p()
    call("cuCtxGetCurrent", _byref(now))
    if now.value != handle:
        call("cuCtxSetCurrent", handle)


def current_device():
    """Number of the device whose context is current in this thread; None if there is no context yet."""
    now, device = ctypes.c_void_p(), ctypes.c_int()
    call("cuCtxGetCurrent", _byref(now))
    if not now.value:
        return None
    call("cuCtxGetDevice", _byref(device))
    return device.value


@contextmanager
def using(device):
    """``with using(device):`` the calls inside act on `device`; afterwards the thread's context is what it was."""
    call("cuCtxPushCurrent_v2", context(device))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", _byref(ctypes.c_void_p()))


def enable_peer_access(device, peer):
    """Let kernels on `device` touch memory of device `peer`. Raises UnsupportedError if the hardware cannot."""
    yes = ctypes.c_int()
    call("cuDeviceCanAccessPeer", _byref(yes), device, peer)
    if not yes.value:
        raise UnsupportedError(f"device {device}: it cannot reach the memory of device {peer}. Ranks of a world read and write "
                               "each other's memory. Use devices of one NVLink or PCIe group (nvidia-smi topo -p2p r).")
    with using(device):
        code = libcuda.function("cuCtxEnablePeerAccess")(context(peer), 0)
    if code != 704:  # already enabled is fine
        libcuda.check(code, "cuCtxEnablePeerAccess", f"device {device}")


def synchronize():
    """Wait for everything on the current context."""
    call("cuCtxSynchronize")


# ---- memory

def alloc(nbytes, about=None):
    """Address of `nbytes` (rounded up to at least 1) of uninitialised device memory."""
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", _byref(pointer), max(int(nbytes), 1), about=about)
    return pointer.value


def free(pointer):
    """Give device memory back; waits for the kernels that run."""
    call("cuMemFree_v2", pointer)


def alloc_host(nbytes):
    """(host address, device address) of `nbytes` of pinned memory that kernels of every device reach (portable, mapped)."""
    host, device = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuMemHostAlloc", _byref(host), nbytes, 1 | 2)
    call("cuMemHostGetDevicePointer_v2", _byref(device), host, 0)
    return host.value, device.value


def free_host(host):
    """Give pinned memory back."""
    call("cuMemFreeHost", host)


def device_of(pointer):
    """Number of the device that this memory belongs to."""
    value = ctypes.c_int()
    call("cuPointerGetAttribute", _byref(value), 9, pointer)
    return value.value


def memory_info():
    """(free, total) bytes of the current device."""
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", _byref(left), _byref(total))
    return left.value, total.value


def memset(pointer, byte, nbytes, stream=0):
    """Set `nbytes` bytes at `pointer` to `byte`, in the order of `stream`."""
    if nbytes:
        call("cuMemsetD8Async", pointer, byte, nbytes, stream)


def memset_u32(pointer, value, count, stream=0):
    """Set `count` 32-bit words at `pointer` to `value`, in the order of `stream`."""
    if count:
        call("cuMemsetD32Async", pointer, value, count, stream)


def copy(target, source, nbytes, stream=0):
    """Copy `nbytes` between any two addresses that the driver knows, in the order of `stream`."""
    if nbytes:
        call("cuMemcpyAsync", target, source, nbytes, stream)


def copy_in(pointer, data, stream=0):
    """Copy bytes (or a buffer) to device memory; returns when they are there."""
    data = bytes(data)
    if data:
        call("cuMemcpyHtoDAsync_v2", pointer, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), stream)
    stream_synchronize(stream)


def copy_out(pointer, nbytes, stream=0):
    """`nbytes` of device memory as bytes, once what is in `stream` has run."""
    buffer = ctypes.create_string_buffer(max(nbytes, 1))
    if nbytes:
        call("cuMemcpyDtoHAsync_v2", buffer, pointer, nbytes, stream)
    stream_synchronize(stream)
    return buffer.raw[:nbytes]


def copy_2d(target, target_pitch, source, source_pitch, width_bytes, height, stream=0, pageable=""):
    """Copy `height` rows of `width_bytes` bytes; a pitch is the bytes from a row to the next.

    Any addresses that the driver knows; `pageable` says that "source" or "target" is host memory that it does not know.
    """
    copier_2d(target, target_pitch, source, source_pitch, width_bytes, height, pageable)(stream)


def copier_2d(*copy):
    """A function of the stream that makes that copy; arguments as of :func:`copy_2d`, but for the stream."""
    prepared = partial(call, "cuMemcpy2DAsync_v2", _byref(libcuda.Copy2D.of(*copy)))
    return prepared if all(copy[4:6]) else lambda stream: None


# ---- memory of other processes

def ipc_export(pointer):
    """64 bytes with which another process opens the allocation that starts at `pointer`."""
    handle = libcuda.IpcHandle()
    call("cuIpcGetMemHandle", _byref(handle), pointer, about="symmetric memory")
    return bytes(handle.reserved)


def ipc_open(handle):
    """Address of another process's allocation, from the bytes that its :func:`ipc_export` gave."""
    pointer, value = ctypes.c_uint64(), libcuda.IpcHandle()
    ctypes.memmove(_byref(value), handle, 64)
    call("cuIpcOpenMemHandle_v2", _byref(pointer), value, 1, about="symmetric memory of a peer")  # 1: enable peer access lazily
    return pointer.value


def ipc_close(pointer):
    """Unmap what :func:`ipc_open` mapped."""
    call("cuIpcCloseMemHandle", pointer)


# ---- streams

def stream_create():
    """A new stream that does not wait for the legacy default stream."""
    handle = ctypes.c_void_p()
    call("cuStreamCreate", _byref(handle), 1)
    return handle.value


def stream_destroy(stream):
    """Destroy a stream; what it holds still runs to its end."""
    call("cuStreamDestroy_v2", stream)


def stream_synchronize(stream):
    """Wait for what is in `stream`."""
    call("cuStreamSynchronize", stream)


def stream_done(stream):
    """Whether everything in `stream` has run."""
    code = libcuda.function("cuStreamQuery")(stream)
    if code != 600:
        libcuda.check(code, "cuStreamQuery")
    return code == 0


# ---- kernels

def load(cubin, symbol, shared_bytes=0, device=None):
    """Load a cubin and find its kernel `symbol`; returns a :class:`pknumba.runtime.function.Function`.

    Args:
        cubin: the bytes.
        shared_bytes: dynamic shared memory that a block of it may use; beyond 48 KiB the limit is raised here.
        device: device number; None: the current one of this thread, or 0.

    Everything is loaded now, not at the first launch, because lazy loading waits for kernels that may be waiting for us.
    Raises DriverError or UnsupportedError.
    """
    from .function import Function
    device = (current_device() or 0) if device is None else device
    module, handle = ctypes.c_void_p(), ctypes.c_void_p()
    with using(device):
        call("cuModuleLoadData", _byref(module), ctypes.cast(ctypes.c_char_p(cubin), ctypes.c_void_p), about=symbol)
        call("cuModuleGetFunction", _byref(handle), module, symbol.encode(), about=symbol)
        call("cuFuncLoad", handle, about=symbol)
        if shared_bytes:
            call("cuFuncSetAttribute", handle, 8, shared_bytes, about=symbol)
        return Function(module.value, handle.value, symbol, device, shared_bytes)
