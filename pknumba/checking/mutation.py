"""Mutants of a kernel, or of the drivers that give its roles their tasks: every synchronising line deleted or bent, one at a time.

A mutant that nobody notices is a line that does nothing, a bug that the toy problem cannot show, or a hole in the checker.
"""

import ast
import importlib
import inspect
import sys
import time
import types
from dataclasses import dataclass, field

import numpy as np

from .checker import Plan
from .play import play
from .toys import toy_of
from .. import primitives
from ..errors import ContractError, PknumbaError

#: Arguments of the functions that are mutated: roles, and the loops that drive them.
BODIES = ("cfg", "g", "s", "task"), ("cfg", "g", "s", "part", "place", "places")
#: Calls that order something: each is deleted in turn. Of calls with arguments a wrong one is tried too.
SYNCHRONISING = ("wait", "arrive", "expect", "signal", "signal_all", "wait_until", "fence_async", "store_async_wait",
                 "store_async_read_wait", "turn_wait", "turn_pass", "barrier", "mma_wait", "sync", "announce", "await_all",
                 "check_in", "await_blocks")


def _plays(arguments):
    """Whether a function with these arguments is a role or a part of one, which may take more, or a driver."""
    return any(tuple(arguments[:len(body)]) == body for body in BODIES)


def _name(node):
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _bend(node):
    """Wrong versions of one expression: (label, replacement)."""
    name = _name(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor) and isinstance(node.left, ast.Name) and node.left.id == "phase":
        yield "phase ^ 1 -> phase", node.left
    if name == "ring" and isinstance(node.args[0], ast.BinOp) and isinstance(node.args[0].op, ast.Sub):
        yield f"{ast.unparse(node.args[0])} -> {ast.unparse(node.args[0].left)}", _with(node, 0, node.args[0].left)
    if name == "wait" and isinstance(node.args[1], ast.Name):
        yield "phase -> phase ^ 1", _with(node, 1, ast.BinOp(node.args[1], ast.BitXor(), ast.Constant(1)))
    if name == "store_async_read_wait":
        yield "one more store may be reading", _with(node, 0, ast.BinOp(node.args[0], ast.Add(), ast.Constant(1)))
    if name == "store_async_wait":
        yield "waits for the read only", ast.Call(ast.Name("store_async_read_wait", ast.Load()), node.args, [])
    if name == "mma_wait" and isinstance(node.args[1], ast.Constant):
        yield f"mma_wait {node.args[1].value} -> {node.args[1].value + 1}", _with(node, 1, ast.Constant(node.args[1].value + 1))
    if name == "mma" and len(node.args) > 3 and isinstance(node.args[3], ast.Compare):
        yield "k > 0 -> k > 1", _with(node, 3, ast.Compare(node.args[3].left, node.args[3].ops, [ast.Constant(1)]))
    if name == "wait_until":
        yield "waits for one signal less", _with(node, 2, ast.BinOp(node.args[2], ast.Sub(), ast.Constant(1)))
    if name == "signal_all":
        yield "all ranks on one counter", _with(node, 1, ast.Constant(0))
    if name == "signal":
        next_rank = ast.BinOp(ast.BinOp(node.args[2], ast.Add(), ast.Constant(1)), ast.Mod(), ast.parse("g.world_size", mode="eval").body)
        yield "signals the next rank", _with(node, 2, next_rank)


def _with(call, i, argument):
    """The call with another i-th argument."""
    return ast.Call(call.func, [*call.args[:i], argument, *call.args[i + 1:]], call.keywords)


class _Swap(ast.NodeTransformer):
    def __init__(self, target, replacement):
        self.target, self.replacement = target, replacement

    def visit(self, node):
        return self.replacement if node is self.target else super().generic_visit(node)


def mutants(module, within=None):
    """Yield (label, syntax tree) for every mutant of the roles (or drivers) in a module.

    Args:
        within: names of the classes and functions (a driver's factory, say) that are mutated; None: every role and driver in the module.
    """
    source = inspect.getsource(module)

    def bodies(tree):
        named = (ast.ClassDef, ast.FunctionDef)
        tops = [tree] if within is None else [part for part in ast.walk(tree) if isinstance(part, named) and part.name in within]
        return [f for top in tops for f in ast.walk(top) if isinstance(f, ast.FunctionDef) and _plays([a.arg for a in f.args.args])]

    def variant(find, replacement):
        tree = ast.parse(source)
        node = [n for f in bodies(tree) for n in ast.walk(f)][find]
        return ast.fix_missing_locations(_Swap(node, ast.copy_location(replacement, node)).visit(tree))

    for i, node in enumerate(n for f in bodies(ast.parse(source)) for n in ast.walk(f)):
        if isinstance(node, ast.Expr) and _name(node.value) in SYNCHRONISING:
            yield f"line {node.lineno}: without {ast.unparse(node)}", variant(i, ast.Pass())
        if isinstance(node, ast.Assign) and _name(node.value) == "mma_wait":
            yield f"line {node.lineno}: without {ast.unparse(node)}", variant(i, ast.Pass())
        for label, replacement in _bend(node):
            yield f"line {node.lineno}: {label}", variant(i, replacement)


def load(module, tree):
    """The module with another syntax tree, under another name, importing what the original imports."""
    name = module.__name__ + "_mutant"
    mutant = types.ModuleType(name)
    mutant.__package__ = module.__package__
    sys.modules[name] = mutant
    mutant.__dict__.update({p: getattr(primitives, p) for p in primitives.__all__})
    exec(compile(tree, module.__file__, "exec"), mutant.__dict__)
    return mutant


def survivors(module, make, run, tries, report=lambda line: None, within=None, found=None):
    """Labels of the mutants that nothing notices.

    Args:
        module: whose roles are mutated; within: as of ``mutants``. found: other mutants, (label, syntax tree or source).
        make: function(mutant module) that gives the kernel class to run.
        run: function(kernel class, try number) that raises if it notices. It must not for the module as it is.
        tries: how many times each mutant is run.
        report: called with a line for each mutant that was noticed.

    Returns: (labels that survived, how many mutants there were).
    """
    for n in range(tries):
        run(make(module), n)
    alive, count = [], 0
    for label, tree in mutants(module, within) if found is None else found:
        count += 1
        broken = make(load(module, tree))
        try:
            for n in range(tries):
                run(broken, n)
        except (PknumbaError, AssertionError) as noticed:   # a mutant that fails otherwise is a mistake of this file
            report(f"{label}: {type(noticed).__name__}: {str(noticed).splitlines()[0]}")
            continue
        alive.append(label)
    return alive, count


@dataclass
class Mutation:
    """Outcome of `mutate`. True if every mutant was noticed.

    Attributes:
        kernel: name. count: mutants. alive: labels of those that nobody noticed. noticed: a line for each other. seconds: how long it took.
    """

    kernel: str
    count: int = 0
    alive: list = field(default_factory=list)
    noticed: list = field(default_factory=list)
    seconds: float = 0.0

    def __bool__(self):
        return not self.alive

    def __str__(self):
        if not self.count:
            return f"{self.kernel}: no synchronising line of its own; its template and its base classes have them"
        head = f"{self.kernel}: {self.count - len(self.alive)} of {self.count} mutants noticed, {self.seconds:.1f} s"
        if not self.alive:
            return f"{head}\nevery synchronising line matters, and its absence is found"
        return "\n".join([head, "nobody notices (a line that does nothing, or a toy problem that cannot show it):",
                          *(f"  {label}" for label in self.alive)])


def mutate(kernel, *, toy=None, progress=lambda line: None, max_switches=200_000, **plan):
    """Delete or bend every synchronising line of a kernel's own roles, one at a time, and see who notices.

    Args:
        kernel: class; the roles that it inherits from another file are left alone.
        toy: function (kernel, world, rng, **changes) -> Toy instead of the kernel's own.
        progress: called with a line for every mutant that is noticed.
        plan: fields of Plan; each mutant runs until something is found. Worlds are 2 and 3 unless given.

    Returns: Mutation.

    Raises: ContractError if the kernel cannot be read; whatever is found in the kernel as it is, which must be clean.
    """
    plan = Plan(**plan)
    if plan.worlds is None and kernel.communicates():
        plan = Plan(**{**vars(plan), "worlds": (2, 3)})
    module, start = _module_of(kernel), time.monotonic()
    runs = sorted(plan.runs(kernel), key=lambda run: run.seed)
    found = Mutation(kernel.__name__)

    def run(broken, number):
        r = runs[number]
        make = toy_of(broken) if toy is None else lambda *a, **k: toy(broken, *a, **k)
        problem = make(r.world, np.random.default_rng(r.seed), **plan.changes)
        play(broken, problem, r.world, plan.calls, r.seed, plan.skew, policy=r.policy, completion=r.completion, max_switches=max_switches,
             card_sms=plan.card_sms)

    def report(line):
        found.noticed.append(line)
        progress(line)

    within = {c.__name__ for c in kernel.__mro__ if c.__module__ == kernel.__module__}
    found.alive, found.count = survivors(module, lambda m: _class_of(m, kernel), run, len(runs), report, within)
    found.seconds = time.monotonic() - start
    return found


def _class_of(module, kernel):
    """The class of that name; a toy that is found by the class's home must still be found."""
    made = getattr(module, kernel.__name__)
    if made is not kernel and kernel.__module__.startswith("pknumba."):
        for cls in made.__mro__:
            if cls.__module__ == module.__name__:
                cls.__module__ = kernel.__module__
    return made


def _module_of(kernel):
    try:
        module = sys.modules.get(kernel.__module__) or importlib.import_module(kernel.__module__)
        inspect.getsource(module)
        return module
    except (ImportError, OSError, TypeError) as error:
        raise ContractError(f"{kernel.__name__}: its source cannot be read. Mutants are made from the file. Put the kernel in a "
                            "file of its own.") from error
