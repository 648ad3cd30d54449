"""From an entry function to a cubin for sm_90a, with no GPU: numba -> LTO IR -> nvJitLink."""

import contextlib
import re
import threading
import time
import warnings
from types import SimpleNamespace

import numba.cuda.compiler
import numba.cuda.dispatcher
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, types

from . import variant
from ..errors import CompileError
from .blame import blame
from .cubin import facts
from .insist import CHECKS
from .ptx import BOXES, PEER_BOXES
from .sites import SITES
from .types import I32

ARCH = (9, 0, "a")
_lock = threading.RLock()


class _ByValue(ir.values.ArgumentAttributes):
    """LLVM 7 (which NVVM speaks for sm_90) writes ``byval`` without a type."""

    def _expand(self, name, typ):
        return "byval" if name == "byval" else super()._expand(name, typ)


def _pass_by_value(kernel):
    """Mark byte-block parameters as by-value grid constants: tensor maps must stay in the parameter bank."""
    module, numbers = kernel.module, []
    for i, argument in enumerate(kernel.args):
        pointee = getattr(argument.type, "pointee", None)
        if isinstance(pointee, ir.ArrayType) and pointee.element == ir.IntType(8):
            attributes = _ByValue()
            attributes.add("byval")
            attributes.align = 128
            argument.attributes = attributes
            numbers.append(i + 1)
    if numbers:
        constants = module.add_metadata([ir.Constant(I32, n) for n in numbers])
        note = module.add_metadata((kernel, ir.MetaDataString(module, "grid_constant"), constants))
        cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(note)


@contextlib.contextmanager
def _compiling():
    """Numba asks the current device for its capability, and marks kernels in one function: answer and extend for the while."""
    modules = numba.cuda.dispatcher, numba.cuda.compiler
    with _lock:
        saved = [(m, n, getattr(m, n)) for m in modules for n in ("get_current_device", "kernel_fixup")]
        original = numba.cuda.compiler.kernel_fixup

        def fixup(kernel, debug):
            original(kernel, debug)
            _pass_by_value(kernel)

        for m in modules:
            m.get_current_device, m.kernel_fixup = (lambda: SimpleNamespace(compute_capability=ARCH)), fixup
        try:
            yield
        finally:
            for m, name, value in saved:
                setattr(m, name, value)


def compile_entry(entry, parameters, threads, name, blocks=1):
    """Compile ``entry(parameters)`` for blocks of that many threads, of which an SM has registers for as many as ``blocks``.

    Nothing but LTO IR may be linked: any PTX or object file makes the assembler ignore setmaxnreg and serialize wgmma.

    Returns: (cubin, record) with symbol, registers, stack, spill (bytes), notices, boxes, seconds.
    Raises: CompileError when the assembler spills or reports a performance loss.
    """
    start = time.perf_counter()
    lto = _frontend(entry, parameters, threads, name, "ltoir", blocks)
    middle = time.perf_counter()
    cubin, log = _link(lto, name)
    record = _read_log(log, cubin)
    record.update(boxes=_listed(BOXES), peer_boxes=_listed(PEER_BOXES), sites=list(SITES), checks=list(CHECKS),
                  numba_s=round(middle - start, 2), link_s=round(time.perf_counter() - middle, 2))
    # Checks take registers, and a debug build may be slow; so does recording, of a role that has few and no accumulators.
    spills = record["spill"] and not variant.timeline()
    if (record["notices"] or spills) and not variant.debug():
        raise CompileError(f"{name}: {record['spill']} bytes spilled; {'; '.join(record['notices']) or 'no notice'}. A kernel must keep "
                           "its accumulators in registers and its wgmma asynchronous. Use a smaller tile or more consumers.", record=record)
    return cubin, record


def _listed(boxes):
    return {name: [list(b) for b in found] for name, found in boxes.items()}


def _frontend(entry, parameters, threads, name, output, blocks=1):
    """numba's part. What a role or a lowering got wrong comes out as ContractError, anything else as CompileError."""
    entry.__name__ = entry.__qualname__ = name
    BOXES.clear()
    PEER_BOXES.clear()
    SITES.clear()
    CHECKS.clear()
    with _compiling(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Could not find source")      # of the entry, which has none
        try:
            return cuda.compile(entry, types.void(parameters), device=False, abi="numba", cc=ARCH, launch_bounds=(threads, blocks),
                                output=output, lineinfo=variant.lines())[0]
        except Exception as error:              # noqa: B902 - numba's own, or whatever a wrong argument did to a lowering
            raise blame(name, error) from error


def entry_ptx(entry, parameters, threads, name):
    """The PTX of ``entry(parameters)``."""
    return _frontend(entry, parameters, threads, name, "ptx")


def _link(lto, name):
    """(cubin, what the assembler said) of LTO IR."""
    from cuda.bindings import nvjitlink
    options = ["-arch=sm_90a", "-lto", "-O3", "-Xptxas=-v", *["-lineinfo"] * variant.lines()]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, lto, len(lto), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), _text(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle) + \
            _text(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
    except nvjitlink.nvJitLinkError as error:
        log = _text(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        raise CompileError(f"{name}: nvJitLink refuses it ({error}). {log}", report=log) from error
    finally:
        nvjitlink.destroy(handle)


def _text(size_of, read, handle):
    text = bytearray(size_of(handle))
    read(handle, text)
    return text.decode(errors="replace").strip("\0")


def _read_log(log, cubin):
    """What the assembler said of the one kernel. Nothing, where nvJitLink had the same input before: then the cubin says it."""
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    said = facts(cubin)
    if frame is None:
        return dict(said, spill=said["stack"], notices=[])
    stack, stores, loads = map(int, frame.groups())
    notices = re.findall(r".*(?:C7\d\d\d|Potential|warning|ignored|serializ).*", log)
    return dict(said, stack=stack, spill=stores + loads, notices=notices)
