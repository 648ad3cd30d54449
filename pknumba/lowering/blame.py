"""What went wrong while a kernel was typed, as one of our errors that names the role, the line and the rule."""

import os
import re

from ..errors import CompileError, ContractError, PknumbaError

#: Named tuples that a role is given, as roles write them.
_GIVEN = {"Globals": "g", "Task": "task", "TileTask": "task"}


def blame(name, error):
    """The exception to raise, from ``error``.

    Args:
        name: of the kernel.
        error: what numba or a lowering raised.
    """
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))         # numba colours it where colorama is installed
    where, role = _place(error, said)
    if isinstance(error, PknumbaError):
        if where:
            error.args = (f"{error} ({where})",)
        return error
    text = _cause(error, said)
    at = f"{name}, {role} ({where})" if where else f"{name}, {role}"
    missing = re.match(r"Unknown attribute '(\w+)' of type (\w+)\((.*)\)", text)
    if missing and missing[2] in _GIVEN:
        given = _GIVEN[missing[2]]
        return ContractError(f"{at}: {given}.{missing[1]} does not exist. A role has what its kernel declares and the template adds. "
                             "Look at the kernel's tensors, counters and numbers.", field=missing[1], report=said)
    return CompileError(f"{at}: {text.rstrip('.')}. A role may use what numba can type: numbers, cfg, g, s, task and primitives. "
                        "Change that line.", report=said)


def _place(error, said):
    """("gemm.py:45", "consumer"): the innermost line that numba was typing, and its function."""
    where, function, trace = "", "entry", error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        loc, func_id = getattr(owner, "loc", None), getattr(owner, "func_id", None)
        if isinstance(getattr(loc, "line", None), int) and isinstance(getattr(loc, "filename", None), str):
            where = f"{os.path.basename(loc.filename)}:{loc.line}"
        function = getattr(func_id, "func_name", function)
        trace = trace.tb_next
    told, named = re.findall(r"File \"([^\"]+)\", line (\d+)", said), re.findall(r"<function ([\w.<>]+) at", said)
    if told and not where:
        where = f"{os.path.basename(told[0][0])}:{told[0][1]}"
    return where, named[0].split(".")[-1] if named else function


def _cause(error, said):
    """numba's first words that say something."""
    lines = [line.strip() for line in said.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("Failed in", "During:", "<source", "File ", "^", "There are"))]
    return " ".join(lines[:3 if "signature" in "".join(lines[:1]) else 1]) or type(error).__name__
