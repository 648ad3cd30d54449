"""The CUDA driver library by ctypes: prototypes, structures, and errors made from result codes.

Only :mod:`pknumba.runtime.driver` (and the launch and tensor-map files, through it) come here. The library is loaded by the
first call, so that importing pknumba needs no driver. ctypes, rather than cuda-python's bindings, because a call costs a
microsecond on prebuilt arguments, structures are passed with the alignment we choose, and no version of the bindings matters.
"""

import ctypes
import os

from ..errors import DriverError, UnsupportedError

__all__ = ["LIBRARY", "LaunchAttribute", "LaunchConfig", "IpcHandle", "Copy2D", "function", "bare", "call", "check", "load", "unload"]

#: What the dynamic loader is asked for. Tests put a stand-in here (or in the environment) that logs its calls.
LIBRARY = os.environ.get("PKNUMBA_LIBCUDA", "libcuda.so.1")

_KINDS = {"u": ctypes.c_uint, "i": ctypes.c_int, "z": ctypes.c_size_t, "Q": ctypes.c_uint64, "p": ctypes.c_void_p,
          "s": ctypes.c_char_p, "B": ctypes.c_ubyte}


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union, of which we use the first three words."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: 64 opaque bytes, passed by value."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [("src_x", ctypes.c_size_t), ("src_y", ctypes.c_size_t), ("src_type", ctypes.c_int), ("src_host", ctypes.c_void_p),
                ("src_device", ctypes.c_uint64), ("src_array", ctypes.c_void_p), ("src_pitch", ctypes.c_size_t),
                ("dst_x", ctypes.c_size_t), ("dst_y", ctypes.c_size_t), ("dst_type", ctypes.c_int), ("dst_host", ctypes.c_void_p),
                ("dst_device", ctypes.c_uint64), ("dst_array", ctypes.c_void_p), ("dst_pitch", ctypes.c_size_t),
                ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]

    @classmethod
    def of(cls, target, target_pitch, source, source_pitch, width_bytes, height, pageable=""):
        """See ``driver.copy_2d``."""
        return cls(src_type=1 if pageable == "source" else 4, src_host=source, src_device=source, src_pitch=source_pitch,
                   dst_type=1 if pageable == "target" else 4, dst_host=target, dst_device=target, dst_pitch=target_pitch,
                   width=width_bytes, height=height)


#: Argument types of every driver function that pknumba calls, a letter each (see _KINDS; "h" is an IpcHandle by value).
_PROTOTYPES = {
    "cuInit": "u", "cuDriverGetVersion": "p", "cuGetErrorName": "ip", "cuGetErrorString": "ip",
    "cuDeviceGetCount": "p", "cuDeviceGet": "pi", "cuDeviceGetName": "pii", "cuDeviceGetUuid": "pi",
    "cuDeviceGetAttribute": "pii", "cuDeviceTotalMem_v2": "pi", "cuDeviceCanAccessPeer": "pii",
    "cuDeviceGetPCIBusId": "pii", "cuDeviceGetP2PAttribute": "piii",
    "cuDevicePrimaryCtxRetain": "pi", "cuDevicePrimaryCtxRelease_v2": "i",
    "cuCtxGetCurrent": "p", "cuCtxSetCurrent": "p", "cuCtxPushCurrent_v2": "p", "cuCtxPopCurrent_v2": "p", "cuCtxGetDevice": "p",
    "cuCtxSynchronize": "", "cuCtxEnablePeerAccess": "pu",
    "cuMemAlloc_v2": "pz", "cuMemFree_v2": "Q", "cuMemHostAlloc": "pzu", "cuMemHostGetDevicePointer_v2": "ppu",
    "cuMemFreeHost": "p", "cuMemGetInfo_v2": "pp", "cuPointerGetAttribute": "piQ",
    "cuMemcpyHtoDAsync_v2": "Qpzp", "cuMemcpyDtoHAsync_v2": "pQzp", "cuMemcpyAsync": "QQzp",
    "cuMemcpy2DAsync_v2": "pp", "cuMemsetD8Async": "QBzp", "cuMemsetD32Async": "Quzp",
    "cuIpcGetMemHandle": "pQ", "cuIpcOpenMemHandle_v2": "phu", "cuIpcCloseMemHandle": "Q",
    "cuStreamCreate": "pu", "cuStreamDestroy_v2": "p", "cuStreamSynchronize": "p", "cuStreamQuery": "p", "cuStreamIsCapturing": "pp",
    "cuEventCreate": "pu", "cuEventRecord": "pp", "cuEventQuery": "p", "cuEventDestroy_v2": "p", "cuStreamWaitEvent": "ppu",
    "cuEventElapsedTime": "ppp", "cuStreamBeginCapture_v2": "pi", "cuStreamEndCapture": "pp", "cuGraphInstantiateWithFlags": "ppQ",
    "cuGraphLaunch": "pp", "cuGraphDestroy": "p", "cuGraphExecDestroy": "p",
    "cuModuleLoadData": "pp", "cuModuleUnload": "p", "cuModuleGetFunction": "pps", "cuFuncLoad": "p", "cuFuncGetAttribute": "pip",
    "cuFuncSetAttribute": "pii", "cuOccupancyMaxActiveBlocksPerMultiprocessor": "ppiz", "cuOccupancyMaxActiveClusters": "ppp",
    "cuLaunchKernelEx": "pppp",
    "cuTensorMapEncodeTiled": "piupppppiiii",
}

#: What to tell the user about the codes he can do something about: code -> (exception, rule and remedy).
_ADVICE = {
    2: (DriverError, "The device's memory is full. Close symmetric arrays that are no longer needed, or use smaller ones."),
    3: (UnsupportedError, "The driver did not start. Look at nvidia-smi, or use executor=\"interpreter\"."),
    35: (UnsupportedError, "pknumba's kernels need a driver for CUDA 12.4 or newer. Update it."),
    46: (UnsupportedError, "Another process holds the device exclusively. Wait for it, or start MPS with scripts/mps."),
    100: (UnsupportedError, "No CUDA device is visible. Look at CUDA_VISIBLE_DEVICES, or use executor=\"interpreter\"."),
    209: (UnsupportedError, "The kernel was compiled for another architecture than this device's."),
    217: (UnsupportedError, "The two devices cannot read each other's memory. Use devices of one NVLink or PCIe group."),
    222: (UnsupportedError, "The kernel needs a newer driver. Update it."),
    700: (DriverError, "A kernel touched memory that is not mapped; the context is lost. Restart, and run it under "
                       "compute-sanitizer."),
    701: (DriverError, "The block needs more registers or shared memory than the device has. Use a smaller configuration."),
    702: (DriverError, "The kernel ran longer than this device allows. Use a device that drives no display."),
    716: (DriverError, "A kernel used a misaligned address; the context is lost. Restart, and run it under compute-sanitizer."),
    719: (DriverError, "A kernel failed; the context is lost. Restart, and run it under compute-sanitizer."),
    720: (DriverError, "The grid cannot be resident at once. Use fewer blocks, or a configuration that uses less shared memory."),
    800: (UnsupportedError, "The system forbids it to this process. Ranks in containers need a shared IPC namespace "
                            "(--ipc=host)."),
    801: (UnsupportedError, "This device or driver cannot do it."),
    802: (UnsupportedError, "The NVLink fabric is not up. Start nvidia-fabricmanager."),
    803: (UnsupportedError, "The user-mode driver does not fit the kernel module. Reboot after the driver's update."),
    805: (UnsupportedError, "The MPS control daemon does not answer. Start it with scripts/mps start, or unset "
                            "CUDA_MPS_PIPE_DIRECTORY."),
    807: (UnsupportedError, "The MPS server is not ready. Wait a second and try again."),
    900: (DriverError, "The call cannot be captured in a CUDA graph. Make it once before the capture begins."),
}

_state = {"library": None, "functions": {}, "error": None}


def load():
    """The driver library, initialised. Raises UnsupportedError where there is none, or no device; then on every later call."""
    if _state["library"] is None:
        if _state["error"] is not None:
            raise _state["error"]
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as why:
            _state["error"] = UnsupportedError(f"CUDA: {LIBRARY} cannot be loaded ({why}). The GPU executor needs an NVIDIA "
                                               "driver. Install one, or use executor=\"interpreter\".")
            raise _state["error"] from None
        code = library.cuInit(0)
        if code:
            _state["error"] = _error(code, "cuInit")
            raise _state["error"]
        _state["library"] = library  # only now: other threads must not call before cuInit has returned
    return _state["library"]


def unload():
    """Forget the library, so that the next call loads :data:`LIBRARY` anew (for tests)."""
    _state.update(library=None, functions={}, error=None)


def function(name):
    """The driver function `name` with its prototype; it returns a CUresult. Raises UnsupportedError if the driver lacks it."""
    found = _state["functions"].get(name)
    if found is None:
        try:
            found = getattr(load(), name)
        except AttributeError:
            raise UnsupportedError(f"CUDA: the driver has no {name}. It is older than CUDA 12.4. Update it.") from None
        found.argtypes = [IpcHandle if kind == "h" else _KINDS[kind] for kind in _PROTOTYPES[name]]
        found.restype = ctypes.c_int
        _state["functions"][name] = found
    return found


def bare(name):
    """The same without a prototype, which costs a look at each argument: for calls that are made again and again with the same ctypes
    objects, None for a null pointer."""
    function(name)
    return load()[name]


def call(name, *arguments, about=None):
    """Call a driver function. Raises DriverError or UnsupportedError, with `about` as the subject of the message."""
    code = function(name)(*arguments)
    if code:
        raise _error(code, name, about)


def check(code, name, about=None):
    """Raise the error of a call that returned `code`, unless it is zero."""
    if code:
        raise _error(code, name, about)


def _error(code, name, about=None):
    kind, advice = _ADVICE.get(code, (DriverError, "The arguments or the state of the device do not allow it."))
    text = ctypes.c_char_p()
    result = f"CUresult {code}"
    library = _state["library"]
    if library is not None and library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value:
        result = text.value.decode()
    return kind(f"{about or 'CUDA'}: {name} returned {result}. {advice}", code=code, result=result, call=name)
