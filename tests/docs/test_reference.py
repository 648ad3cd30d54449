"""The reference is made from docstrings: they say shapes, dtypes, scope, units, results and errors."""

import inspect
import re

import pytest

import pknumba
from pknumba import errors, kernels, primitives
from pknumba.lowering import PRIMITIVES

OPERATORS = [n for n, home in pknumba._HOMES.items() if home == "kernels" and n[0].islower()
             and "world" in inspect.signature(getattr(pknumba, n)).parameters]
SHAPE = re.compile(r"\([A-Z]\w*, |any shape|shape")


def words(thing):
    return inspect.getdoc(thing) or ""


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    """Every argument, shapes, dtypes, what comes back, what is raised, and whether all ranks must call it."""
    function, text = getattr(pknumba, name), words(getattr(pknumba, name))
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in text, f"{name}: no {section}"
    missing = [p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)]
    assert not missing, f"{name}: nothing of {missing}"
    assert SHAPE.search(text), f"{name}: no shape"
    assert re.search(r"bfloat16|float16|float32|dtype", text), f"{name}: no dtype"
    refers = re.search(r"Raises: as ``(\w+)``", text)
    assert [e for e in errors.__all__ if e in text] or refers and refers[1] in OPERATORS, f"{name}: names no error"
    kernel = next(k for k in (getattr(kernels, c, None) for c in kernels.__all__ if c[0].isupper())
                  if k.__module__ == function.__module__)
    if kernel.symmetric:
        assert "collective" in text or "every rank" in text, f"{name}: who must call it?"


@pytest.mark.parametrize("name", sorted(primitives.__all__))
def test_primitives(name):
    """Every argument and the PTX; scopes stand in the declaration, and the memory order where one is kept."""
    primitive, text = getattr(primitives, name), words(getattr(primitives, name))
    entry = PRIMITIVES.get(name)
    parameters = entry.signature.parameters if entry else inspect.signature(primitive).parameters
    missing = [p for p in parameters if not re.search(rf"\b{p}\b", text) and len(parameters) > 1]
    refers = re.search(r"as in ``|like ``|otherwise like", text)
    assert not missing or refers, f"{name}: nothing of {missing}"
    if entry and re.search(r"\bPTX:.*(release|acquire)", text):
        assert re.search(r"release|acquire|order", text.split("PTX:")[0]), f"{name}: its memory order is told by its PTX only"
    if entry and re.search(r"\.(sys|gpu|cta)\b", text.split("PTX:")[-1]) and re.search(r"release|acquire", text):
        assert re.search(r"system scope|block scope|cluster scope|sys|gpu|cta", text), f"{name}: no scope of its order"


@pytest.mark.parametrize("name", ["mpi", "local", "torch", "run", "barrier", "allgather", "agree", "split", "symmetric", "close"])
def test_worlds(name):
    """What a world does says whether all ranks must call it, or what happens if one does not."""
    text = words(getattr(pknumba.World, name))
    assert len(text) > 40 and text[0].isupper() or text.startswith("``"), name
    if name in ("mpi", "torch", "symmetric", "close"):
        assert "ollective" in text, f"World.{name}: is it collective?"


def test_errors_are_documented():
    for name in errors.__all__:
        assert len(words(getattr(errors, name))) > 20 and name in errors.__doc__, name
