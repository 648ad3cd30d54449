"""A kernel as lint sees it: the calls of each role in the order of the source, and what the kernel declares."""

import ast
import inspect
from collections import namedtuple

from .source import _is_kernel, called, roles_of, tree_of
from .. import primitives
from ..errors import PknumbaError
from ..tiles import Semaphore

#: A call in a role. ``name``: of the function; ``node``: ast.Call; ``loop``: innermost loop around it, or None; ``tests``: conditions
#: that it stands under; ``names``: {local name: expression that it was last given}.
Call = namedtuple("Call", "name node file loop tests names")

#: Roles of the templates, and the functions that a file without a class may have.
ROLE_NAMES = ("loader", "consumer", "storer", "communicator")


class Subject:
    """What is checked.

    Attributes:
        name: for reports. roles: {name: [Call]}. semaphores: {name: role that arrives}, or None if unknown.
        symmetric, counters: names, or None. cfg: a configuration, or None. of_cluster: names of semaphores of whole clusters, or None.
        driven: names of counters that the template signals.
    """

    def __init__(self, name, roles, semaphores=None, symmetric=None, counters=None, cfg=None, of_cluster=None):
        self.name, self.roles, self.semaphores, self.of_cluster = name, roles, semaphores, of_cluster
        self.symmetric, self.counters, self.cfg, self.driven = symmetric, counters, cfg, {"finished"}

    def opaque(self, base):
        """Whether a function that is no primitive is given all of ``g`` or ``s``: what it does with it cannot be seen."""
        return any(isinstance(a, ast.Name) and a.id == base and call.name not in primitives.__all__
                   for calls in self.roles.values() for call in calls for a in call.node.args)

    @classmethod
    def of_kernel(cls, kernel, cfg=None):
        """A kernel class; ``cfg``: a configuration, to read its declarations with (None: the default one)."""
        roles = {name: list(_calls_of(function)) for name, function in roles_of(kernel).items() if name in kernel_roles(kernel, cfg)}
        semaphores, of_cluster, cfg = None, None, cfg or _default(kernel)
        try:
            declared = kernel.shared(cfg)
            found = {n: d for n, d in zip(declared._fields, declared) if isinstance(d, Semaphore)}
            semaphores, of_cluster = {n: d.by for n, d in found.items()}, {n for n, d in found.items() if d.of == "cluster"}
        except (PknumbaError, AttributeError, TypeError, NotImplementedError):
            pass                                        # declarations that need what only a call knows
        subject = cls(kernel.__name__, roles, semaphores, tuple(kernel.symmetric), tuple(kernel.all_counters()), cfg, of_cluster)
        subject.driven |= set(kernel.all_counters()) - set(kernel.counters)
        return subject

    @classmethod
    def of_source(cls, text, file, semaphores=None, of_cluster=None):
        """The functions of a file that are named as roles are."""
        tree = ast.parse(text)
        functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in ROLE_NAMES}
        return cls(file, {name: list(_walk(node, file)) for name, node in functions.items()}, semaphores,
                   of_cluster=of_cluster)


def _default(kernel):
    try:
        return kernel.config()
    except TypeError:
        return None


def kernel_roles(kernel, cfg):
    """Names of the roles that the kernel plays, and of the pieces of roles that its template calls."""
    try:
        return {*kernel.roles(cfg or _default(kernel)), "copy_in", "copy_out"}
    except (PknumbaError, AttributeError, TypeError):
        return set(ROLE_NAMES)


def _calls_of(function, depth=4):
    """The calls of a role; a role of another class that it calls stands in its place."""
    tree, file = tree_of(function)
    if tree is None:
        return
    for call in _walk(tree, file):
        inner = _role_called(call.node, function) if depth else None
        if inner is None:
            yield call
        else:
            for c in _calls_of(inner, depth - 1):
                yield c._replace(loop=c.loop or call.loop, tests=call.tests + c.tests)


def _role_called(node, function):
    if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
        return None
    base = function.__globals__.get(node.func.value.id)
    inner = getattr(base, node.func.attr, None) if _is_kernel(base) else None
    return inner if inspect.isfunction(inner) else None


def _walk(tree, file):
    names = {}

    def visit(node, loop, tests):
        if isinstance(node, (ast.For, ast.While)):
            for part in ([node.iter] if isinstance(node, ast.For) else [node.test]):
                yield from visit(part, loop, tests)
            for part in node.body + node.orelse:
                yield from visit(part, node, tests)
            return
        if isinstance(node, ast.If):
            yield from visit(node.test, loop, tests)
            for part in node.body + node.orelse:
                yield from visit(part, loop, (*tests, node.test))
            return
        if isinstance(node, ast.Assign):
            yield from visit(node.value, loop, tests)
            for target in node.targets:
                for t in (target.elts if isinstance(target, ast.Tuple) else [target]):
                    if isinstance(t, ast.Name):
                        names[t.id] = node.value
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, loop, tests)
        if isinstance(node, ast.Call):
            yield Call(called(node), node, file, loop, tests, dict(names))

    for statement in tree.body:
        yield from visit(statement, None, ())


def attribute(node, base):
    """"x" of ``base.x``, ``base.x[i]`` or ``base.x[i, j]``; None of anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == base:
        return node.attr
    return None


def words(node, names=None):
    """Every name and attribute in an expression; what local names were given is looked into once."""
    found = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute):
            found.add(n.attr)
        elif isinstance(n, ast.Name):
            found.add(n.id)
            if names and n.id in names:
                found |= words(names[n.id])
    return found
