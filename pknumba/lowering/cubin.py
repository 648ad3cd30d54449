"""What a cubin says of its one kernel: for builds whose assembler was silent because nvJitLink had the result already."""

import struct

from ..errors import CompileError

_SECTION = struct.Struct("<IIQQQQIIQQ")     # Elf64_Shdr
_FRAME_SIZE, _REGISTERS = 0x11, 0x2F        # attributes of .nv.info: (symbol, bytes of stack), (symbol, registers)
_SIZED = 4                                  # format of an attribute that is followed by its size and value


def facts(cubin):
    """dict(symbol, registers, stack) of the kernel. A kernel that spills has a stack. Raises CompileError for anything else."""
    if cubin[:4] != b"\x7fELF":
        raise CompileError("cubin: is no ELF file.")
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [_SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    text_at = sections[names][4]
    named = {cubin[text_at + s[0]:cubin.index(b"\0", text_at + s[0])].decode(): s for s in sections}
    kernels = [name for name in named if name.startswith(".text.")]
    if len(kernels) != 1:
        raise CompileError(f"cubin: holds {len(kernels)} functions. A kernel is one, with everything inlined.")
    found = _attributes(cubin, named[".nv.info"])
    return dict(symbol=kernels[0].removeprefix(".text."), registers=found.get(_REGISTERS, 0), stack=found.get(_FRAME_SIZE, 0))


def _attributes(cubin, section):
    """{attribute: the largest value of any function} of those that are a symbol and a number."""
    at, end, found = section[4], section[4] + section[5], {}
    while at + 4 <= end:
        form, attribute, size = struct.unpack_from("<BBH", cubin, at)
        if form == _SIZED and size == 8:
            found[attribute] = max(found.get(attribute, 0), struct.unpack_from("<I", cubin, at + 8)[0])
        at += 4 + (size if form == _SIZED else 0)
    return found
