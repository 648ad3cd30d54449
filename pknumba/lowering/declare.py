"""How a primitive is declared: a plain function (its CPU meaning) with a lowering (its GPU meaning) beside it.

::

    @primitive(scope="thread")
    def arrive(sem):
        "One arrival of this worker (release). PTX: mbarrier.arrive."
        sem.arrive()

    @arrive.lowering
    def _(sem):                                   # called with types
        def emit(p, sem):                         # called with a Ptx writer and values
            p("mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];", sem)
        return emit

A lowering returns ``emit``, or ``(result, emit)`` where result is ``Int``, ``Pair``, ``Real`` or a type. Nothing here imports numba:
lowerings are registered with it when the first kernel is compiled.
"""

import functools
import inspect
from dataclasses import dataclass, field

from .. import interpreter
from ..errors import ContractError

__all__ = ["primitive", "need", "constant", "Int", "Pair", "Real", "PRIMITIVES", "KernelMeta", "Primitive"]

Int, Pair, Real = "int32", "pair of int32", "float32"

#: Every primitive declared so far, by name.
PRIMITIVES = {}


@dataclass
class Primitive:
    """A declared primitive: its CPU function, the scopes of roles that may call it, and its lowering."""

    function: object
    scopes: tuple
    lower: object = None
    signature: inspect.Signature = field(init=False)

    def __post_init__(self):
        self.signature = inspect.signature(self.function)


class KernelMeta(type):
    """Class of kernel classes: inside a role, ``Base.role(cfg, g, s, task)`` calls that role on both executors."""


def need(condition, message):
    """Raise ContractError(message) unless condition holds: for lowerings, which run while a kernel is typed."""
    if not condition:
        raise ContractError(message)


def constant(argtype, what):
    """The value of an argument that must be known when the kernel is compiled: an int, a bool, a string or None, or a tuple of them.

    Args:
        argtype: its numba type, as a lowering is given it; what: what to call it, such as "store_async_wait: pending".
    """
    if isinstance(argtype, tuple) or hasattr(argtype, "types"):
        return tuple(constant(t, what) for t in argtype)
    if getattr(argtype, "name", "") == "none":
        return None
    need(hasattr(argtype, "literal_value"), f"{what}: is a {argtype} known only at run time. It must be a constant. Write a number or a "
         "field of cfg.")
    return argtype.literal_value


def primitive(scope=None):
    """Declare a primitive.

    Args:
        scope: "thread", "warp" or "warpgroup", or a tuple of them: whose roles may call it. None: arithmetic, for anyone.

    Raises ContractError for a name that a primitive of another module has; the same module may define it anew.
    """
    scopes = (scope,) if isinstance(scope, str) else tuple(scope or ())

    def declare(function):
        name = function.__name__
        known = PRIMITIVES.get(name)
        if known is not None and known.function.__module__ != function.__module__:
            raise ContractError(f"primitive {name}: {known.function.__module__} has one already. Kernels know primitives by their names, "
                                "each of which is one function's. Choose another name.", primitive=name)
        entry = PRIMITIVES[name] = Primitive(function, scopes)
        if scopes:
            @functools.wraps(function)
            def public(*args, **kwargs):
                role = interpreter.current().role
                if role.scope not in scopes:
                    raise ContractError(_misplaced(name, scopes, role.name, role.scope), primitive=name, role=role.name)
                return function(*args, **kwargs)
        else:
            public = function

        def lowering(rule):
            entry.lower, entry.public = rule, public
            return rule

        public.lowering = lowering
        return public

    return declare


def _misplaced(name, scopes, role, scope):
    return f"{role}: calls {name}, but plays in a {scope}. {name} is for a {' or a '.join(scopes)}. Move the call to such a role."
