"""Mutants of a kernel, or of the drivers that give its roles their tasks: every synchronising line deleted or bent, one at a
time. Each must be noticed by the interpreter."""

import ast
import inspect
import sys
import types

from pknumba import primitives
from pknumba.errors import PknumbaError

#: Arguments of the functions that are mutated: roles, and the loops that drive them.
BODIES = (["cfg", "g", "s", "task"], ["cfg", "g", "s", "part", "place", "places"])
#: Calls that order something: each is deleted in turn. Of calls with arguments a wrong one is tried too.
SYNCHRONISING = ("wait", "arrive", "expect", "signal", "signal_all", "wait_until", "fence_async", "store_async_wait",
                 "store_async_read_wait", "turn_wait", "turn_pass", "barrier", "mma_wait")


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
    if name == "mma" and isinstance(node.args[3], ast.Compare):
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


def mutants(module):
    """Yield (label, source) for every mutant of the roles (or drivers) in a module."""
    source = inspect.getsource(module)

    def bodies(tree):
        return [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and [a.arg for a in f.args.args] in BODIES]

    def variant(find, replacement):
        tree = ast.parse(source)
        node = [n for f in bodies(tree) for n in ast.walk(f)][find]
        return ast.unparse(ast.fix_missing_locations(_Swap(node, replacement).visit(tree)))

    for i, node in enumerate(n for f in bodies(ast.parse(source)) for n in ast.walk(f)):
        if isinstance(node, ast.Expr) and _name(node.value) in SYNCHRONISING:
            yield f"line {node.lineno}: without {ast.unparse(node)}", variant(i, ast.Pass())
        if isinstance(node, ast.Assign) and _name(node.value) == "mma_wait":
            yield f"line {node.lineno}: without {ast.unparse(node)}", variant(i, ast.Pass())
        for label, replacement in _bend(node):
            yield f"line {node.lineno}: {label}", variant(i, replacement)


def load(module, source):
    """The module with other source, under another name, importing what the original imports."""
    name = module.__name__ + "_mutant"
    mutant = types.ModuleType(name)
    mutant.__package__ = module.__package__
    sys.modules[name] = mutant
    mutant.__dict__.update({p: getattr(primitives, p) for p in primitives.__all__})
    exec(compile(source, module.__file__, "exec"), mutant.__dict__)
    return mutant


def survivors(module, make, run, tries, report=lambda line: None):
    """Labels of the mutants that nothing notices.

    Args:
        make: function(mutant module) that gives the kernel class to run.
        run: function(kernel class, try number) that raises if it notices. It must not for the module as it is.
        tries: how many times each mutant is run.
        report: called with a line for each mutant that was noticed.

    Returns: (labels that survived, how many mutants there were).
    """
    for n in range(tries):
        run(make(module), n)
    alive, count = [], 0
    for label, source in mutants(module):
        count += 1
        broken = make(load(module, source))
        try:
            for n in range(tries):
                run(broken, n)
        except (PknumbaError, AssertionError) as noticed:   # a mutant that fails otherwise is a mistake of this file
            report(f"{label}: {type(noticed).__name__} {str(noticed).splitlines()[0]}")
            continue
        alive.append(label)
    return alive, count
