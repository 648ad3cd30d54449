"""Where a kernel writes that a wait outlasted its limit, and what the host makes of it.

A kernel's bounded wait that expires writes one record of ten 32-bit words into pinned host memory (the magic word last) and
raises the abort word, which every other wait of the device looks at; the kernel leaves, and ``world.check()`` raises HangError.
The host then raises the abort words of the other ranks, whose waits give up in the same way and say who told them to.
The addresses and the limit reach the kernel in a context block of 64 bytes of device memory, one for each operator's workspace.
"""

import ctypes
import struct
from collections import namedtuple

__all__ = ["MAGIC_VALUE", "MAGIC", "RANK", "BLOCK", "ROLE", "KIND", "WHICH", "EXPECTED", "SEEN", "OPERATOR", "TOLD",
           "RECORD_BYTES", "ABORT_BYTES", "CHECK", "ERROR", "ABORT", "LIMIT", "CONTEXT_RANK", "CONTEXT_SIZE", "EPOCH", "NUMBER",
           "ABORT_PEERS", "TIMELINE", "CONTEXT_BYTES", "ALARM", "HangRecord", "decode", "describe", "context_bytes"]

#: First word of a record that is complete.
MAGIC_VALUE = 0x600DF00D
#: Indices of the record's 32-bit words. OPERATOR is optional: the context block's NUMBER, so that the right names are used. The upper
#: half of KIND is the number of the source line; TOLD is 0, or 1 + the rank that gave up before this one.
MAGIC, RANK, BLOCK, ROLE, KIND, WHICH, EXPECTED, SEEN, OPERATOR, TOLD = range(10)
#: KIND & 255 of a record that is no wait: a debug build found a value that does not fit (``lowering.insist``).
CHECK = 3
#: Bytes of the pinned memory that holds the record.
RECORD_BYTES = 256

#: Byte offsets in a context block: u64 address of the record, u64 address of this rank's abort word, u64 limit in nanoseconds
#: (0: wait for ever), u32 rank, u32 size, u32 epoch, u32 number of the operator, u64 address of the table of all ranks' abort
#: words, u64 address of the ring of ``intervals`` (0: none).
ERROR, ABORT, LIMIT, CONTEXT_RANK, CONTEXT_SIZE, EPOCH, NUMBER, ABORT_PEERS, TIMELINE = 0, 8, 16, 24, 28, 32, 36, 40, 48
#: Bytes of a context block.
CONTEXT_BYTES = 64
#: Bytes of a rank's abort memory: the abort word (0, or 1 + the rank that gave up first), and a word that elects the record's writer.
ABORT_BYTES = 8
#: In place of a record's first word, for a world where there is more to look at than that.
ALARM = ctypes.c_uint32(1)

#: What a record says, as integers; ``site`` is the number of a source line, ``told`` the rank that gave up before, or None.
HangRecord = namedtuple("HangRecord", "rank block role kind which expected seen operator site told", defaults=(0, None))


def decode(data):
    """The HangRecord in the bytes of a record; None if it is not complete."""
    words = struct.unpack_from("<10I", data)
    if words[0] != MAGIC_VALUE:
        return None
    told = words[TOLD] - 1 if words[TOLD] else None
    return HangRecord(*words[1:TOLD])._replace(kind=words[KIND] & 0xFFFF, site=words[KIND] >> 16, told=told)


def describe(record, names=None):
    """One line: who waited for what.

    Args:
        names: a function from HangRecord to a str; or a dict whose keys "role", "kind" and "which" hold dicts from numbers
            ("which": from (kind, which) pairs or which) to names, or functions of these; or None.
    """
    if callable(names):
        return names(record)
    names = names or {}
    role, kind = _look(names, "role", record.role), _look(names, "kind", record.kind)
    which = _look(names, "which", (record.kind, record.which))
    if which == str((record.kind, record.which)):
        which = _look(names, "which", record.which)
    return (f"rank {record.rank} block {record.block} {role if 'role' in names else f'role {role}'} waits for "
            f"{kind if 'kind' in names else f'kind {kind}'} {which}: expected {record.expected}, seen {record.seen}")


def _look(names, what, key):
    table = names.get(what, {})
    if callable(table):
        return str(table(*key)) if isinstance(key, tuple) else str(table(key))
    return str(table.get(key, key))


def context_bytes(error_record, abort_word, limit_s, rank, size, epoch=0, number=0, abort_peers=0, timeline=0):
    """The 64 bytes of a context block."""
    data = struct.pack("<QQQIIIIQQ", error_record, abort_word, int(limit_s * 1e9), rank, size, epoch, number, abort_peers, timeline)
    return data.ljust(CONTEXT_BYTES, b"\0")
