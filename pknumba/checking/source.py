"""What can be read off a kernel's source: its name on the command line, its roles as syntax trees, who signals what."""

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import textwrap
from pathlib import Path

from ..errors import ContractError, PknumbaError

#: Arguments of a role.
ROLE = ["cfg", "g", "s", "task"]


def load(name):
    """The kernel class that a command line means: an operator's name ("gemm_all_reduce" or "GemmAllReduce"), or "file.py:Class". Also
    a program, "file.py:main".

    Raises ContractError if there is none.
    """
    path, _, wanted = name.rpartition(":")
    if path:
        module = _module(path)
        found = vars(module).get(wanted)
        if not _is_kernel(found) and not inspect.isfunction(found):
            have = ", ".join(_kernels(module)) or "none"
            raise ContractError(f"check: {path} has no kernel class or function {wanted}. Its classes: {have}. Name one of them.")
        return found
    from .. import kernels
    known = _kernels(kernels)
    for found in known:
        if name in (found, _snake(found)) or name.replace("_", "") == found.lower():
            return getattr(kernels, found)
    classes = {k.lower() for k in known}
    there = [n for n in kernels.__all__ if n[0].islower() and n.replace("_", "") in classes]
    near = difflib.get_close_matches(name, there, 1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise ContractError(f"check: no operator {name}. {meant}There are {', '.join(there)}. Give one of them, or file.py:Class.")


def _module(path):
    path = Path(path)
    if not path.is_file():
        raise ContractError(f"check: no file {path}. A kernel of your own is named file.py:Class. Check the path.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except PknumbaError:
        raise
    except Exception as error:
        raise ContractError(f"check: {path} cannot be imported. It says {type(error).__name__}: {error}. Mend that first.") from error
    return module


def _is_kernel(x):
    return inspect.isclass(x) and hasattr(x, "roles") and hasattr(x, "shared") and hasattr(x, "places")


def _kernels(module):
    return sorted(n for n, x in vars(module).items() if _is_kernel(x))


def _snake(name):
    return "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")


def name_of(kernel):
    """What `load` takes for that class."""
    if kernel.__module__.startswith("pknumba."):
        return _snake(kernel.__name__)
    try:
        return f"{os.path.relpath(inspect.getfile(kernel))}:{kernel.__name__}"
    except (TypeError, OSError, ValueError):
        return kernel.__name__


def tree_of(function):
    """(FunctionDef with the file's line numbers, file name) of a role; (None, "") where its source is gone."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None, ""
    ast.increment_lineno(tree, first - 1)
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None), inspect.getsourcefile(function) or ""


def roles_of(kernel):
    """{role's name: function} of a kernel: its static functions (cfg, g, s, task)."""
    found = {}
    for cls in kernel.__mro__[::-1] if inspect.isclass(kernel) else ():
        for name, raw in vars(cls).items():
            if isinstance(raw, staticmethod) and list(inspect.signature(raw.__func__).parameters) == ROLE:
                found[name] = raw.__func__
    return found


def calls_of(kernel, function, depth=4):
    """Every call in a role, in the order of the source, with those of the roles that it calls (``Base.storer(...)``) in their place.

    Yields (ast.Call, file name).
    """
    tree, file = tree_of(function)
    for node in () if tree is None else _in_order(tree):
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and depth:
            base = function.__globals__.get(node.func.value.id)
            inner = getattr(base, node.func.attr, None) if _is_kernel(base) else None
            if inner is not None:
                yield from calls_of(kernel, inner, depth - 1)
                continue
        yield node, file


def _in_order(node):
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)
        if isinstance(child, ast.Call):
            yield child


def called(node):
    """Name of the function that a call calls."""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def signallers(kernel):
    """{counter: names of the roles that signal it}, read off the source."""
    found = {}
    for role, function in roles_of(kernel).items():
        for node, _ in calls_of(kernel, function):
            if called(node) in ("signal", "signal_all", "barrier") and node.args and isinstance(node.args[0], ast.Attribute):
                found.setdefault(node.args[0].attr, []).append(role)
    found.setdefault("finished", ["communicator"])
    return {counter: list(dict.fromkeys(roles)) for counter, roles in found.items()}
