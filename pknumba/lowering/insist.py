"""What a debug build (PKNUMBA_DEBUG=1) checks before a coordinate, an index or a rank is used; nothing at all in any other build."""

from . import variant

__all__ = ["insist", "CHECKS", "CHECK", "BEYOND"]

#: What was checked, as a message says it, by number; filled while a kernel is lowered, kept in its record.
CHECKS = []
#: ``kind`` of a record of a check that failed: which = number of its text, expected = what the value must be below, seen = the value.
CHECK = 3
#: Rows and columns that a window may start beyond an array's edge, where all of it is outside: as far as two of the largest tiles.
BEYOND = 512


def insist(p, role, text, value, limit):
    """In a debug build: unless 0 <= value < limit, write the record of the first violation, and leave.

    Roles of one thread or warp exit before the value is used; a warpgroup goes on, because its barriers must stay complete.

    Args:
        p: the Ptx writer. role: of the worker. text: what the value is, such as "stage of a".
        value, limit: i32 values, or functions that give them, for those that would cost an instruction.
    """
    if not variant.debug():
        return
    value, limit = (x() if callable(x) else x for x in (value, limit))
    if text not in CHECKS:
        CHECKS.append(text)
    with p.when(p.b.icmp_unsigned(">=", value, limit), likely=False):
        p.give_up(role, CHECK, p.const(CHECKS.index(text)), limit, value)
