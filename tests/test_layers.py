"""The laws of the house, read off the source: who imports whom, how long things may be, what is documented."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pknumba"
SOURCES = sorted(PACKAGE.rglob("*.py"))
ALL_PYTHON = SOURCES + sorted(p for folder in ("tests", "scripts", "benchmarks") for p in (ROOT / folder).rglob("*.py"))

#: Layer -> the layers it may import. A layer is a folder or a module directly under pknumba/.
ARROWS = {
    "errors": set(),
    "tiles": {"errors"},
    "config": {"tiles", "errors"},
    "interpreter": {"tiles", "errors"},
    "lowering": {"tiles", "errors"},
    "runtime": {"interpreter", "tiles", "errors"},
    "primitives": {"lowering", "interpreter", "tiles", "errors"},
    "templates": {"primitives", "runtime", "lowering", "interpreter", "config", "tiles", "errors", "nodes"},
    "kernels": {"templates", "primitives", "tiles", "config", "errors"},
    "nodes": {"kernels", "templates", "primitives", "runtime", "config", "tiles", "errors"},
    "tuning": {"checking", "kernels", "templates", "runtime", "interpreter", "config", "tiles", "screen", "errors", "__init__"},
    "checking": {"kernels", "templates", "primitives", "runtime", "interpreter", "config", "tiles", "screen", "errors"},
    "screen": set(),
    "doctor": {"kernels", "runtime", "lowering", "screen", "errors", "__init__"},
    "teaching": {"checking", "tuning", "kernels", "templates", "primitives", "runtime", "interpreter", "config", "tiles", "errors"},
    "ahead": {"checking", "kernels", "templates", "lowering", "config", "tiles", "screen", "errors"},
    "__main__": {"ahead", "checking", "doctor", "tuning", "errors"},
    "__init__": {"kernels", "runtime", "config", "errors", "checking", "ahead"},
}
#: File -> further layers it may import, each with its reason.
EXTRA_ARROWS = {
    "lowering/declare.py": {"interpreter"},       # @primitive is where one declaration becomes a call on either executor
}
#: (layer, layer) that is imported inside functions only.
LAZY = {("runtime", "interpreter"), ("templates", "nodes"), ("__init__", "kernels"), ("__init__", "runtime")}
#: Foreign package -> places that may import it.
FENCES = {
    "numba": ("lowering/",),
    "llvmlite": ("lowering/",),
    "cuda": ("runtime/", "lowering/compile.py"),
    "mpi4py": ("runtime/", "interpreter/mpi.py"),
    "nccl": ("runtime/nodes/",),
    "cupy": ("runtime/",),
    "torch": ("runtime/",),
    "greenlet": ("interpreter/",),
}
#: "file:function" or "file:Class.role" -> why it may be longer than its limit.
LONG_FUNCTIONS = {}
LONG_ROLES = {
    "pknumba/kernels/attention.py:Attention.consumer": "scores, weights, maxima and the result live in registers from first mma to last",
}
ROLES = {"loader", "consumer", "storer", "communicator"}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def tree_of(path):
    return ast.parse(path.read_text(), str(path))


def imports_of(path):
    """Every module the file imports anywhere in it, absolute, as (line, dotted name)."""
    package = ("pknumba", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level + 1], node.module or "")).strip(".") if node.level else node.module
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def functions_of(path):
    """(qualified name, node) of every function and method of a file."""
    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield prefix + child.name, child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)
    yield from walk(tree_of(path), "")


def length(node):
    return node.end_lineno - node.lineno + 1


def report(breaches):
    assert not breaches, "\n" + "\n".join(breaches)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_arrows(path):
    layer, breaches = layer_of(path), []
    extra = EXTRA_ARROWS.get(path.relative_to(PACKAGE).as_posix(), set())
    assert layer in ARROWS, f"{layer} is a new layer: give it its arrows in this file, in DESIGN's picture and in README"
    at_top = {node.lineno for node in tree_of(path).body}
    for line, module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "pknumba":
            continue
        target = parts[1] if len(parts) > 1 and parts[1] in ARROWS else "__init__"
        if target != layer and target not in ARROWS[layer] | extra:
            breaches.append(f"{name_of(path)}:{line}: {layer} may not import {module}")
        if (layer, target) in LAZY and line in at_top:
            breaches.append(f"{name_of(path)}:{line}: {layer} may import {module} inside functions only")
    report(breaches)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_fences(path):
    place, breaches = path.relative_to(PACKAGE).as_posix(), []
    for line, module in imports_of(path):
        homes = FENCES.get(module.split(".")[0])
        if homes and not place.startswith(homes):
            breaches.append(f"{name_of(path)}:{line}: {module} belongs in {' or '.join(homes)}")
    report(breaches)


def test_files_are_short():
    report([f"{name_of(p)}: {n} lines, 300 are enough" for p in ALL_PYTHON if (n := len(p.read_text().splitlines())) > 300])


def test_functions_are_short():
    found = {f"{name_of(p)}:{name}": length(node) for p in ALL_PYTHON for name, node in functions_of(p)}
    report([f"{name}: {n} lines, 50 are too many" for name, n in found.items() if n >= 50 and name not in LONG_FUNCTIONS])
    report([f"{name} is short now: strike it off the list" for name in LONG_FUNCTIONS if found.get(name, 0) < 50])


def test_roles_are_short():
    found = {}
    for path in SOURCES:
        if layer_of(path) == "kernels":
            for name, node in functions_of(path):
                if name.split(".")[-1] in ROLES:
                    found[f"{name_of(path)}:{name}"] = len({s.lineno for s in ast.walk(node) if isinstance(s, ast.stmt)}) - 1
    report([f"{name}: {n} statements, 15 are enough" for name, n in found.items() if n >= 16 and name not in LONG_ROLES])
    report([f"{name} is short now: strike it off the list" for name in LONG_ROLES if found.get(name, 0) < 16])


def test_lines_fit():
    limit = int(re.search(r"line-length = (\d+)", (ROOT / "pyproject.toml").read_text())[1])
    report([f"{name_of(p)}:{i}: {len(line)} columns, {limit} are enough" for p in ALL_PYTHON
            for i, line in enumerate(p.read_text().splitlines(), 1) if len(line) > limit])


def test_ruff_finds_nothing():
    """Names that are not defined or not used, what is known to go wrong; pyproject.toml says which rules."""
    found = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", ROOT], capture_output=True,
                           text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_import_is_light():
    """`import pknumba` touches no GPU, no MPI and no compiler, and is quick."""
    code = ("import sys, time; import numpy; start = time.perf_counter(); import pknumba; took = time.perf_counter() - start\n"
            "print(took, *sorted({m.split('.')[0] for m in sys.modules} & {'numba', 'mpi4py', 'cuda', 'cupy', 'torch', 'llvmlite'}))")
    runs = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
            for _ in range(3)]
    assert runs[0][1:] == [], f"import pknumba loads {runs[0][1:]}"
    assert min(float(r[0]) for r in runs) < 0.3


def test_public_names():
    pknumba = importlib.import_module("pknumba")
    assert pknumba.__all__ == list(dict.fromkeys(pknumba.__all__))
    breaches = []
    for name in pknumba.__all__:
        value = getattr(pknumba, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            breaches += [f"{name} has no docstring"] if not (value.__doc__ or "").strip() else []
            if inspect.isclass(value):
                breaches += [f"{name}.{k} has no docstring" for k, v in vars(value).items() if inspect.isroutine(v)
                             and not k.startswith("_") and k not in {*ROLES, "shared"} and not (inspect.getdoc(v) or "").strip()]
    report(breaches)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_docstrings(path):
    """Every module, and every public function and class at its top level, says what it does."""
    tree = tree_of(path)
    breaches = [] if ast.get_docstring(tree) else [f"{name_of(path)}: the module has no docstring"]
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_") and not ast.get_docstring(node):
            breaches.append(f"{name_of(path)}:{node.lineno}: {node.name} has no docstring")
    report(breaches)


def test_primitives_name_their_ptx():
    """Whoever reads a primitive learns which instruction it is; index arithmetic (index.py) has none of its own."""
    primitives = importlib.import_module("pknumba.primitives")
    named = {name: getattr(primitives, name) for name in primitives.__all__}
    report([f"{name}: its docstring names no PTX" for name, f in named.items()
            if not f.__module__.endswith(".index") and "PTX" not in (f.__doc__ or "")])


def test_errors_state_a_rule_and_a_remedy():
    """Messages read *subject: fact. Rule. Remedy.*: a colon, and at least one full stop."""
    from pknumba import errors
    breaches = []
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = literal_text(node.exc.args[0])
                name = getattr(node.exc.func, "id", getattr(node.exc.func, "attr", ""))
                if name in errors.__all__ and text and not (re.search(r":(\s|$)", text) and "." in text.replace("(...)", ".")):
                    breaches.append(f"{name_of(path)}:{node.lineno}: {name}({text!r})")
    report(breaches)


def literal_text(node):
    """The constant part of a string or f-string; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "(...)" for v in node.values)
    return None


def test_no_machine_in_the_repository():
    """No path, host or setting of the machine that a file was written on."""
    slash = "/"
    forbidden = [slash + "opt" + slash + "pypi", slash + "work" + slash, "index-" + "url", "find-" + "links", slash + "root" + slash]
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    breaches = []
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in (".npy", ".npz", ".cubin", ".png"):
            text = path.read_text(errors="replace")
            breaches += [f"{name}: {word}" for word in forbidden if word in text]
    report(breaches)
