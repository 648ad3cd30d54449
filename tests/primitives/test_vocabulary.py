"""The vocabulary is complete: every primitive has both halves, says what it does, and is tested in this folder."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from pknumba import primitives
from pknumba.lowering import PRIMITIVES

from . import kernels, rank_kernels
from .cases import CASES

HERE = Path(__file__).parent
#: Module of each primitive that DESIGN's table names. Later ones (collectives, ...) have modules of their own.
VOCABULARY = {
    "semaphore": "wait arrive expect", "sync": "sync turn_first turn_wait turn_pass",
    "tma": "load_async store_async store_add_async store_min_async store_max_async store_async_wait store_async_read_wait fence_async",
    "mma": "accumulator as_operand mma mma_wait", "tile": "load store add_panel load_rows store_rows",
    "elements": "fill fill_rows cast maximum minimum exp2 log2 mask row_max row_sum",
    "columns": "col_max col_sum",
    "signal": "signal signal_all wait_until barrier keep_epoch", "multimem": "reduce all_reduce broadcast take",
    "index": "ring tile_coord div mod least i32"}
NAMES = sorted(name for name, entry in PRIMITIVES.items() if entry.function.__module__.startswith("pknumba."))   # tests declare some


def test_all_are_there():
    assert {name for names in VOCABULARY.values() for name in names.split()} <= set(NAMES) == set(primitives.__all__)
    for module, names in VOCABULARY.items():
        assert {PRIMITIVES[name].function.__module__.rpartition(".")[2] for name in names.split()} == {module}


@pytest.mark.parametrize("name", NAMES)
def test_both_halves(name):
    entry = PRIMITIVES[name]
    assert entry.lower is not None and getattr(primitives, name) is entry.public
    assert list(inspect.signature(entry.lower).parameters) == list(entry.signature.parameters), "the lowering has the same parameters"
    lines = inspect.getsource(entry.function).splitlines()
    body = ast.parse("\n".join(lines)).body[0].body[1:]
    assert sum(s.end_lineno - s.lineno + 1 for s in body) <= 15


@pytest.mark.parametrize("name", NAMES)
def test_docstring(name):
    entry = PRIMITIVES[name]
    text = inspect.getdoc(entry.function)
    assert "PTX:" in text and text.split("\n")[0].endswith((".", ":"))
    missing = [p for p in entry.signature.parameters if not re.search(rf"\b{p}\b", text)]
    assert not missing, f"{name} does not explain {missing}"


def test_words_are_tested():
    """Each primitive is in the table WORDS of a test_words*.py."""
    tables = [importlib.import_module(f"{__package__}.{path.stem}").WORDS for path in sorted(HERE.glob("test_words*.py"))]
    assert set().union(*tables) == set(NAMES)


def test_values_are_tested():
    """Each primitive is called by a tiny kernel that a case runs, or by a kernel or template of the library, whose tests run it."""
    used = {case.kernel.__name__ for case in CASES}
    assert used == {*kernels.__all__, *rank_kernels.__all__, "Attention"}
    called = set()
    library = HERE.parent.parent / "pknumba"
    for path in (*HERE.glob("*kernels.py"), *library.glob("kernels/*.py"), *library.glob("templates/*.py")):
        tree = ast.parse(path.read_text())
        called |= {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert set(NAMES) - called == set()


def test_exports_are_unique():
    assert len(primitives.__all__) == len(set(primitives.__all__))
