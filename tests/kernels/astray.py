"""Mutants of collectives: every line that orders or moves something deleted, or bent, one at a time."""

import ast
import inspect

from . import mutation

#: Calls that order something, and calls that move data between ranks.
ORDERING = "announce", "await_all", "tick", "sync"
MOVING = ("send_box", "take_boxes", "reduce_boxes", "copy_box", "copy_boxes", "reduce_box", "squares", "over_warps", "normalise")


def _name(node):
    return getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""


def _with(call, i, text):
    """The call with another i-th argument."""
    return ast.Call(call.func, [*call.args[:i], ast.parse(text, mode="eval").body, *call.args[i + 1:]], call.keywords)


def _bend(node):
    """Wrong versions of a call: (label, replacement)."""
    name = _name(node)
    if name == "await_all":
        yield "waits for one call less", _with(node, 3, f"({ast.unparse(node.args[3])}) - 1")
    for i, argument in enumerate(node.args if name in MOVING else ()):
        text = ast.unparse(argument)
        if text == "True":
            yield f"{name}: not everywhere", _with(node, i, "False")
        elif text == "task.step":
            yield f"{name}: always the first call", _with(node, i, "1")
        elif text == "task.id" or isinstance(argument, ast.Call) and i == 2:
            yield f"{name}: the next piece", _with(node, i, f"{text} + 1")
        elif text in ("peer", "slot", "g.rank", "g.root"):
            yield f"{name}: {text} is the next rank", _with(node, i, f"({text} + 1) % g.world_size")


class _Swap(ast.NodeTransformer):
    def __init__(self, target, replacement):
        self.target, self.replacement = target, replacement

    def visit(self, node):
        return self.replacement if node is self.target else super().generic_visit(node)


def mutants(module, part):
    """Yield (label, source) for every mutant of a class or function of the module."""
    source = inspect.getsource(module)

    def nodes(tree):
        return list(ast.walk(next(n for n in tree.body if getattr(n, "name", "") == part)))

    def variant(i, replacement):
        tree = ast.parse(source)
        return ast.unparse(ast.fix_missing_locations(_Swap(nodes(tree)[i], replacement).visit(tree)))

    for i, node in enumerate(nodes(ast.parse(source))):
        if isinstance(node, ast.Expr) and _name(node.value) in ORDERING + MOVING + ("communicate", "copy_in", "copy_out", "send", "finish"):
            yield f"line {node.lineno}: without {ast.unparse(node)}", variant(i, ast.Pass())
        for label, replacement in _bend(node) if isinstance(node, ast.Call) else ():
            yield f"line {node.lineno}: {label}", variant(i, replacement)


def survivors(module, part, make, run, tries):
    """(labels of the mutants that nothing notices, how many there were).

    Args:
        part: name of the class or function that is mutated. make: function(module) of the kernel class to run.
        run: function(kernel class, number of the try) that raises if it notices. It must not for the module as it is.
    """
    return mutation.survivors(module, make, run, tries, report=print, found=mutants(module, part))
